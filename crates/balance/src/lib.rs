//! Accept policies: one file each, pure, and the laws that they all keep.
