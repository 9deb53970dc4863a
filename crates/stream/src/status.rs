//! How sessions end, as `$status` shows it.

/// The session came to its end in order.
pub const OK: u16 = 200;
/// The client sent what it should not.
pub const BAD_REQUEST: u16 = 400;
/// A rule keeps it out.
pub const FORBIDDEN: u16 = 403;
/// Something failed here.
pub const INTERNAL: u16 = 500;
/// No server answered.
pub const BAD_GATEWAY: u16 = 502;
/// A limit keeps it out.
pub const UNAVAILABLE: u16 = 503;
