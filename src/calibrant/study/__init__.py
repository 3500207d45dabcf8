"""Studies: a grid of training runs, trained, resumed and reported."""
