// The theme's sidebar has buttons without words; readers of screens need one.
addEventListener("DOMContentLoaded", () => {
  for (const button of document.querySelectorAll(".bd-sidebar-primary summary")) {
    button.setAttribute("aria-label", "Show or hide the pages below");
  }
});
