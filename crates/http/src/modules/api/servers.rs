//! Shows the servers of upstream groups and their state, and changes it.

use serde_json::{Value, json};
use weir_proto::http1::Method;
use weir_upstream::{Changes, Duty, Group, MOST_WEIGHT, PeerState};
use weir_values::Command;

use super::error::{ApiError, ApiResult, members};
use crate::request::Request;
use crate::upstream::groups::GROUPS;

/// A change of a server's state.
type ServerChange = Box<dyn Fn(&mut Changes)>;

/// The groups of `http`.
pub fn of_http(r: &Request) -> Vec<&Group> {
    let groups = GROUPS.of(&r.site.main_confs);
    groups.all().map(|upstream| &*upstream.group).collect()
}

/// The groups of `stream`.
pub fn of_stream(r: &Request) -> Vec<&Group> {
    r.event_loop.stream_groups.get().into_iter().flatten().map(|group| &**group).collect()
}

pub fn answer(
    r: &Request,
    groups: &[&Group],
    parts: &[&str],
    method: Method,
    body: &Value,
) -> ApiResult {
    let now = r.event_loop.handle.now();
    let (name, rest) = match parts {
        [] if method == Method::Get => {
            let all = groups.iter().map(|group| (group.name.clone(), shown(group, now)));
            return Ok(Value::Object(all.collect()));
        }
        [] => return Err(ApiError::method("GET")),
        [name, rest @ ..] => (name, rest),
    };
    let group = groups.iter().find(|group| group.name == **name).ok_or_else(ApiError::not_found)?;
    let server = match rest {
        [] | ["servers"] if method == Method::Get => {
            let shown = shown(group, now);
            return Ok(if rest.is_empty() { shown } else { shown["servers"].clone() });
        }
        [] | ["servers"] => return Err(ApiError::method("GET")),
        // A path of a Unix-domain socket contains slashes.
        ["servers", server @ ..] => server.join("/"),
        _ => return Err(ApiError::not_found()),
    };
    let is_it = |state: &PeerState| state.peer.name == server;
    if !group.states(now).iter().any(is_it) {
        return Err(ApiError::not_found());
    }
    let change: ServerChange = match method {
        Method::Get => Box::new(|_| {}),
        Method::Delete => Box::new(|changes| *changes = Changes::default()),
        Method::Patch => requested_change(body)?,
        _ => return Err(ApiError::method("GET, PATCH, DELETE")),
    };
    if method != Method::Get {
        if !group.is_shared() {
            let text =
                "has no \"zone\": each worker has state of its own, and one alone would hear of it";
            return Err(ApiError::new(409, format!("upstream \"{}\" {text}", group.name)));
        }
        group.change(is_it, &*change, now);
        // Requests may wait for a server in other processes. Without a master there are no other
        // processes.
        if let Some(tell) = r.event_loop.commands.get() {
            let _ = tell(Command::Look);
        }
        r.log(
            weir_log::Level::Notice,
            format_args!("server \"{server}\" of upstream \"{}\" was changed", group.name),
        );
    }
    let mut all = group.states(now).into_iter().filter(is_it);
    all.next().map(|state| server_shown(&state, now)).ok_or_else(ApiError::not_found)
}

/// Reads a change: `{"state": "up" | "drain" | "down" | null, "weight": N | null}`. `null` restores
/// the value of the configuration.
fn requested_change(body: &Value) -> Result<ServerChange, ApiError> {
    let members = members(body, &["state", "weight"])?;
    let duty = match members.get("state") {
        None => None,
        Some(Value::Null) => Some(None),
        Some(Value::String(name)) if Duty::named(name).is_some() => Some(Duty::named(name)),
        Some(_) => return Err(ApiError::invalid("\"state\" may be: up, drain, down, null")),
    };
    let weight = match members.get("weight") {
        None => None,
        Some(Value::Null) => Some(None),
        Some(value) => {
            let n = value.as_u64().and_then(|n| u32::try_from(n).ok());
            let n = n.filter(|n| (1..=MOST_WEIGHT).contains(n));
            let wrong =
                || ApiError::invalid(format!("\"weight\" may be: 1 to {MOST_WEIGHT}, null"));
            Some(Some(n.ok_or_else(wrong)?))
        }
    };
    Ok(Box::new(move |changes| {
        changes.duty = duty.unwrap_or(changes.duty);
        changes.weight = weight.unwrap_or(changes.weight);
    }))
}

fn shown(group: &Group, now: std::time::Instant) -> Value {
    let servers = group.states(now);
    let servers: Vec<Value> = servers.iter().map(|state| server_shown(state, now)).collect();
    json!({ "zone": group.zone_name(), "servers": servers })
}

fn server_shown(state: &PeerState, now: std::time::Instant) -> Value {
    let peer = &state.peer;
    json!({
        "server": peer.name,
        "name": peer.server,
        "backup": peer.options.backup,
        "state": state.availability(now),
        "weight": state.weight(),
        "active": state.conns,
        "max_conns": peer.options.max_conns,
        "fails": state.fails,
        "changed": state.changes != Changes::default(),
    })
}
