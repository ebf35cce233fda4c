"""From compiled code to a launch: cache, kernel table, params blob, threads, scratch memory."""
