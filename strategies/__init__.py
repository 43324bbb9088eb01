"""What each strategy of parallel training communicates: the mesh of ranks, model shapes, and calls."""
