//! How sessions end, as `$status` shows it.

/// The result of a session.
pub type Outcome = Result<(), SessionError>;

/// Why a session ended early. The log has the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionError {
    /// The client closed the connection, or sent nothing in time. As in nginx, that is no failure.
    ClientLeft,
    /// The client sent something invalid.
    BadRequest,
    /// `deny` refused the client.
    Forbidden,
    /// A failure of weir or of its configuration.
    Internal,
    /// No upstream server could be reached.
    BadGateway,
    /// `limit_conn` refused the client.
    Unavailable,
    /// A script ended the session with this status.
    Script(u16),
}

/// The status of a session that ended normally.
const OK: u16 = 200;

/// The status of an ended session, for `$status` and `status_zone`.
pub fn code(outcome: Outcome) -> u16 {
    match outcome {
        Ok(()) | Err(SessionError::ClientLeft) => OK,
        Err(SessionError::BadRequest) => 400,
        Err(SessionError::Forbidden) => 403,
        Err(SessionError::Internal) => 500,
        Err(SessionError::BadGateway) => 502,
        Err(SessionError::Unavailable) => 503,
        Err(SessionError::Script(status)) => status,
    }
}
