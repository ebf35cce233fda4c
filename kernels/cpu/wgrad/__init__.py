"""Weight gradients: dw[k, c, r, s], summed over the pixels of dy and of shifted views of x."""
