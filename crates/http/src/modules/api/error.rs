//! Why a request to the API is refused.

use serde_json::Value;

/// The answer to a request, or why there is none.
pub type ApiResult = Result<Value, ApiError>;

/// A status and the text that explains it.
#[derive(Debug)]
pub struct ApiError {
    pub status: u16,
    pub text: String,
    /// Members that say what of a configuration is to blame.
    pub place: Vec<(&'static str, Value)>,
    /// A header that the answer has besides.
    pub header: Option<(&'static str, &'static str)>,
}

impl ApiError {
    /// A status and its text.
    pub fn new(status: u16, text: impl Into<String>) -> ApiError {
        ApiError { status, text: text.into(), place: Vec::new(), header: None }
    }

    /// The path names nothing.
    pub fn not_found() -> ApiError {
        ApiError::new(404, "there is no such thing")
    }

    /// The resource has only these methods.
    pub fn method(allowed: &'static str) -> ApiError {
        let header = Some(("Allow", allowed));
        ApiError { header, ..ApiError::new(405, format!("allowed here: {allowed}")) }
    }

    /// The client has shown no token, or another one.
    pub fn unknown() -> ApiError {
        let header = Some(("WWW-Authenticate", "Bearer"));
        ApiError { header, ..ApiError::new(401, "this needs the token") }
    }

    /// The body is not as it should be.
    pub fn invalid(text: impl Into<String>) -> ApiError {
        ApiError::new(400, text)
    }
}

/// The members of an object, of which these are known.
pub fn members<'v>(
    body: &'v Value,
    known: &[&str],
) -> Result<&'v serde_json::Map<String, Value>, ApiError> {
    let Value::Object(members) = body else {
        return Err(ApiError::invalid("the body is to be a JSON object"));
    };
    match members.keys().find(|name| !known.contains(&name.as_str())) {
        Some(other) => Err(ApiError::invalid(format!("unknown member \"{other}\""))),
        None => Ok(members),
    }
}
