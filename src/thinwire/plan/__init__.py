"""Floor 4: which allocation or codec fits a budget, a deadline and a link, in closed form."""
