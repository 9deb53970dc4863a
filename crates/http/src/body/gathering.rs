//! A body that is to be had whole, while it comes.

/// What was read of it, and where it goes.
pub(super) struct Gathering {
    /// In a file, those that came last.
    pub(super) bytes: Vec<u8>,
    /// `client_body_buffer_size`
    pub(super) room: usize,
    /// All of it may stay in memory.
    pub(super) fits: bool,
    /// It becomes a file, however small it is.
    pub(super) in_file: bool,
    /// All that came is in the buffer of the head.
    pub(super) beside_head: bool,
}
