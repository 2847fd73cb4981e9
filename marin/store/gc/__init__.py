"""What `marin gc` does: read all that lies in a store, judge what nothing needs, and take that away."""
