"""Floor 4: what a run left behind, as a page, tables and figures. It reads run folders, never a method. No torch."""
