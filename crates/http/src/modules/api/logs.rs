//! Reopens logs and changes the level of error logs. Both concern all processes, so the master does
//! it.

use serde_json::{Value, json};
use weir_log::Level;
use weir_proto::http1::Method;
use weir_values::Command;

use super::error::{ApiError, ApiResult, members};
use crate::request::Request;

pub fn answer(r: &Request, parts: &[&str], method: Method, body: &Value) -> ApiResult {
    match (parts, method) {
        ([], Method::Get) => Ok(json!({ "level": level() })),
        ([], _) => Err(ApiError::method("GET")),
        (["reopen"], Method::Post) => {
            pass_on(r, Command::Reopen)?;
            Ok(json!({ "reopening": true }))
        }
        (["reopen"], _) => Err(ApiError::method("POST")),
        (["level"], Method::Get) => Ok(json!({ "level": level() })),
        (["level"], Method::Post) => {
            let level = requested_level(body)?;
            pass_on(r, Command::Level(level))?;
            Ok(json!({ "level": level.map(Level::name) }))
        }
        (["level"], Method::Delete) => {
            pass_on(r, Command::Level(None))?;
            Ok(json!({ "level": null }))
        }
        (["level"], _) => Err(ApiError::method("GET, POST, DELETE")),
        _ => Err(ApiError::not_found()),
    }
}

/// The level that overrides those of all error logs, if one is set.
fn level() -> Option<&'static str> {
    weir_log::level().map(Level::name)
}

/// `{"level": NAME | null}`
fn requested_level(body: &Value) -> Result<Option<Level>, ApiError> {
    match members(body, &["level"])?.get("level") {
        Some(Value::Null) => Ok(None),
        Some(Value::String(name)) if Level::parse(name).is_some() => Ok(Level::parse(name)),
        _ => Err(ApiError::invalid(
            "\"level\" may be: emerg, alert, crit, error, warn, notice, info, debug, null",
        )),
    }
}

fn pass_on(r: &Request, command: Command) -> Result<(), ApiError> {
    let told = r.event_loop.commands.get().is_some_and(|tell| tell(command).is_ok());
    match told {
        true => Ok(()),
        false => Err(ApiError::new(503, "the master process does not hear")),
    }
}
