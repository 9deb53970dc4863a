//! How sessions end, as `$status` shows it.

/// How a session came out.
pub type Outcome = Result<(), SessionError>;

/// Why a session ends before its content is done. The log has the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionError {
    /// The client left, or sent nothing in time. nginx does not count that as a failure.
    ClientLeft,
    /// The client sent what it should not.
    BadRequest,
    /// A rule keeps the client out.
    Forbidden,
    /// weir or its configuration cannot serve the session.
    Internal,
    /// No server answered.
    BadGateway,
    /// A limit keeps the client out.
    Unavailable,
    /// A script said this status.
    Said(u16),
}

/// The code of a session that came to its end in order.
const OK: u16 = 200;

/// What `$status` and the counts of `status_zone` show of a session that ended.
pub fn code(outcome: Outcome) -> u16 {
    match outcome {
        Ok(()) | Err(SessionError::ClientLeft) => OK,
        Err(SessionError::BadRequest) => 400,
        Err(SessionError::Forbidden) => 403,
        Err(SessionError::Internal) => 500,
        Err(SessionError::BadGateway) => 502,
        Err(SessionError::Unavailable) => 503,
        Err(SessionError::Said(status)) => status,
    }
}
