//! `PUT /config` replaces the whole configuration, which comes as a file's text, as a tree or as
//! parts. Servers can also be added to a group or removed from it. The master tests the resulting
//! configuration and has the running workers take it.

use serde_json::{Value, json};
use weir_proto::http1::Method;
use weir_values::{ChangeKind, ChangeOutcome, ChangePlace, ChangeRequest};

use super::error::{ApiError, ApiResult, members};
use crate::request::Request;

/// The accepted content types of a configuration.
const CONTENT_TYPES: [&str; 4] = ["text/plain", "application/octet-stream", TREE, PARTS];
/// The content type of a whole tree, for programs.
const TREE: &str = "application/vnd.weir.tree";
/// The content type of a tree that refers to unchanged parts of the current configuration by name.
const PARTS: &str = "application/vnd.weir.parts";
/// The maximum length of a text.
const LONGEST: u64 = 15 << 20;
/// The maximum length of a tree, which contains the files that it names.
const LONGEST_TREE: u64 = 256 << 20;

/// Answers once the configuration is in use or has failed.
pub async fn answer(r: &mut Request, parts: &[&str], method: Method) -> ApiResult {
    match (parts, method) {
        ([], Method::Put) => {}
        ([], _) => return Err(ApiError::method("PUT")),
        _ => return Err(ApiError::not_found()),
    }
    let request = match super::content_type(r, &CONTENT_TYPES)? {
        TREE => ChangeRequest::Tree(super::body(r, LONGEST_TREE).await?),
        PARTS => ChangeRequest::Parts(super::body(r, LONGEST_TREE).await?),
        _ => ChangeRequest::Text(super::body(r, LONGEST).await?),
    };
    ask(r, &request).await
}

/// Adds a server to a group, or removes it: `{"server": ADDRESS, ...}`.
pub async fn server(
    r: &Request,
    block: &str,
    group: &str,
    method: Method,
    body: &Value,
) -> ApiResult {
    let (block, group) = (block.to_owned(), group.to_owned());
    let request = match method {
        Method::Post => ChangeRequest::AddServer { block, group, words: words(body)? },
        _ => {
            members(body, &["server"])?;
            ChangeRequest::RemoveServer { block, group, server: address(body)? }
        }
    };
    ask(r, &request).await
}

/// Converts the body to the arguments of a `server` line.
fn words(body: &Value) -> Result<Vec<String>, ApiError> {
    const NUMBERS: [&str; 3] = ["weight", "max_conns", "max_fails"];
    const FLAGS: [&str; 2] = ["backup", "down"];
    let known = ["server", "fail_timeout"].into_iter().chain(NUMBERS).chain(FLAGS);
    let members = members(body, &known.collect::<Vec<_>>())?;
    let mut words = vec![address(body)?];
    for (name, value) in members.iter().filter(|(name, _)| *name != "server") {
        let name = name.as_str();
        match value {
            Value::Number(n) if NUMBERS.contains(&name) && n.is_u64() => {
                words.push(format!("{name}={n}"));
            }
            Value::String(time) if name == "fail_timeout" && is_word(time) => {
                words.push(format!("{name}={time}"));
            }
            Value::Bool(true) if FLAGS.contains(&name) => words.push(name.to_owned()),
            Value::Bool(false) if FLAGS.contains(&name) => {}
            _ => return Err(ApiError::invalid(format!("\"{name}\" may not be {value}"))),
        }
    }
    Ok(words)
}

fn address(body: &Value) -> Result<String, ApiError> {
    let address = body.get("server").and_then(Value::as_str).filter(|text| is_word(text));
    address.map(str::to_owned).ok_or_else(|| ApiError::invalid("\"server\" is to be an address"))
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

async fn ask(r: &Request, request: &ChangeRequest) -> ApiResult {
    let ask = r.event_loop.asks_change.get();
    let ask = ask.ok_or_else(|| ApiError::new(503, "there is no master process to ask"))?;
    let ChangeOutcome { kind, place, text } = ask(request).await;
    let status = match kind {
        ChangeKind::Taken => return Ok(json!({ "taken_by": "running workers" })),
        ChangeKind::Reloaded => return Ok(json!({ "taken_by": "new workers", "why": text })),
        ChangeKind::Wrong => 422,
        ChangeKind::Unreadable => 400,
        ChangeKind::Refused => 403,
        ChangeKind::Unknown => 404,
        ChangeKind::Present | ChangeKind::Busy => 409,
        ChangeKind::Late => 504,
        ChangeKind::Unasked => 503,
    };
    let ChangePlace { file, line, path } = place;
    let mut place = Vec::new();
    if line > 0 {
        place.extend([("file", json!(file)), ("line", json!(line))]);
    }
    if !path.is_empty() {
        place.push(("path", json!(path)));
    }
    Err(ApiError { place, ..ApiError::new(status, text) })
}
