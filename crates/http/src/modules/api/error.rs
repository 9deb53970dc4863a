//! Errors of the API.

use serde_json::Value;

/// The answer to a request, or an error.
pub type ApiResult = Result<Value, ApiError>;

/// A status and the text that explains it.
#[derive(Debug)]
pub struct ApiError {
    pub status: u16,
    pub text: String,
    /// Members of the answer that name the faulty place of a configuration.
    pub place: Vec<(&'static str, Value)>,
    /// An additional header of the answer.
    pub header: Option<(&'static str, &'static str)>,
}

impl ApiError {
    /// A status and its text.
    pub fn new(status: u16, text: impl Into<String>) -> ApiError {
        ApiError { status, text: text.into(), place: Vec::new(), header: None }
    }

    /// 404: the path names no resource.
    pub fn not_found() -> ApiError {
        ApiError::new(404, "there is no such thing")
    }

    /// 405: the resource supports only these methods.
    pub fn method(allowed: &'static str) -> ApiError {
        let header = Some(("Allow", allowed));
        ApiError { header, ..ApiError::new(405, format!("allowed here: {allowed}")) }
    }

    /// 401: the client sent no token or a wrong one.
    pub fn unknown() -> ApiError {
        let header = Some(("WWW-Authenticate", "Bearer"));
        ApiError { header, ..ApiError::new(401, "this needs the token") }
    }

    /// 400: the body is not valid.
    pub fn invalid(text: impl Into<String>) -> ApiError {
        ApiError::new(400, text)
    }
}

/// The members of an object. An unknown member is an error.
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
