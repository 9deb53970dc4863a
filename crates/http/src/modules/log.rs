//! Access logs. nginx: ngx_http_log_module.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use weir_conf::{Contexts, Directive as Line, Error};
use weir_log::Level;
use weir_values::Template;
use weir_values::log::{self, Escape, Files, Logs, NamedLine, OpenLogFiles};

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::files;
use crate::request::Request;
use crate::site::settings::{Key, Settings};

pub use weir_values::log::{Conf, LogTarget, Writers};

impl Settings for Conf {}

/// Sets the default log of servers without `access_log`.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    if !s.context.meets(Contexts::SERVER) || !matches!(CONF.of(&s.location).logs, Logs::Unset) {
        return Ok(());
    }
    let path = s.setup.inputs.access_log.to_owned();
    let targets = s.setup.log_targets.len();
    let target = with(s, |files, conf| log::default_log(files, conf, &path, b"combined"))?;
    s.setup.note_default_log(target, targets);
    Ok(())
}

/// The format `combined`, which is the default.
const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status \
    $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";

/// The format `json` (`access_log FILE format=json`), one object per line.
const JSON: &str = "{\"time\":\"$time_iso8601\",\"msec\":$msec,\"remote_addr\":\"$remote_addr\",\
    \"remote_user\":\"$remote_user\",\"method\":\"$request_method\",\"host\":\"$host\",\
    \"uri\":\"$request_uri\",\"protocol\":\"$server_protocol\",\"status\":$status,\
    \"bytes_sent\":$bytes_sent,\"body_bytes_sent\":$body_bytes_sent,\
    \"request_length\":$request_length,\"request_time\":$request_time,\
    \"referer\":\"$http_referer\",\"user_agent\":\"$http_user_agent\",\
    \"request_id\":\"$request_id\",\"connection\":$connection,\
    \"connection_requests\":$connection_requests,\"event_loop_blocked\":$event_loop_blocked,\
    \"upstream_addr\":\"$upstream_addr\",\"upstream_status\":\"$upstream_status\",\
    \"upstream_connect_time\":\"$upstream_connect_time\",\
    \"upstream_header_time\":\"$upstream_header_time\",\
    \"upstream_response_time\":\"$upstream_response_time\",\
    \"upstream_cache_status\":\"$upstream_cache_status\",\
    \"ssl_protocol\":\"$ssl_protocol\",\"ssl_cipher\":\"$ssl_cipher\",\
    \"ssl_session_reused\":\"$ssl_session_reused\"}";

/// The predefined formats: `combined` and `format=json`.
fn predefined(name: &[u8]) -> Option<(&'static str, Escape)> {
    let bare = name.strip_prefix(b"format=");
    match bare.unwrap_or(name).to_ascii_lowercase().as_slice() {
        b"combined" => Some((COMBINED, Escape::Default)),
        b"json" if bare.is_some() => Some((JSON, Escape::Json)),
        _ => None,
    }
}

/// Runs `read` with the settings of this block.
fn with<T>(
    s: &mut Scope<'_, '_>,
    read: impl FnOnce(&mut Files<'_, Request>, &mut Conf) -> Result<T, Error>,
) -> Result<T, Error> {
    let setup = &mut *s.setup;
    let mut files = Files {
        reading: weir_values::Reading {
            variables: &mut setup.variables,
            warnings: &mut setup.warnings,
        },
        targets: &mut setup.log_targets,
        prefix: setup.inputs.prefix,
        logs: setup.inputs.logs,
        ready: predefined,
    };
    read(&mut files, CONF.change(&mut s.location))
}

fn access_log(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    if !d.arg(0).is_some_and(|word| word.is("off")) {
        s.setup.forbid_reuse();
    }
    with(s, |files, conf| log::access_log(files, conf, d, first, Some(b"combined")))
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "log_format",
        help: "A named format of access log lines.",
        set: Set::Simple(|s, d| with(s, |files, conf| log::log_format(files, conf, d))),
    },
    Directive {
        name: "access_log",
        help: "The file, format and condition of an access log.",
        set: Set::Simple(access_log),
    },
    Directive {
        name: "open_log_file_cache",
        help: "Keeps logs open whose names have variables.",
        set: Set::Simple(|s, d| {
            s.once(d)?;
            log::open_log_file_cache(CONF.change(&mut s.location), d)
        }),
    },
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_log", directives: DIRECTIVES, finish, ..Module::NEW };

/// Log phase handler: writes the request's lines.
pub fn handler(r: &mut Request) {
    let event_loop = r.event_loop.clone();
    let conn = r.conn.clone();
    if !log::write(r, CONF.of(r.conf()), event_loop.lines(conn.lines()), named_line) {
        r.log(Level::Warn, format_args!("send() to syslog failed while logging request"));
    }
}

/// The line and its file, for a file name with variables. `None` if the name would leave the
/// directory of the logs.
fn named_line(
    r: &mut Request,
    name: &Template,
    cache: Option<OpenLogFiles>,
    line: &[u8],
) -> Option<NamedLine> {
    let file = name.eval(r).into_owned();
    if files::climbs(r, &file, name) {
        return None;
    }
    let path = |bytes: Vec<u8>| PathBuf::from(OsString::from_vec(bytes));
    let core = &r.conf().core;
    let mut root = Vec::new();
    core.root_into(r, &mut root);
    let (path, root, line) = (path(file), Some(path(root)), line.to_vec());
    let mut about = " while logging request".to_owned();
    r.describe(&mut about);
    let (connection, log) = (r.conn.number, r.error_log().clone());
    Some(NamedLine { path, root, cache, line, connection, log, about })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variables::Variables;
    use weir_values::log::Format;

    #[test]
    fn wrong_references() {
        for (text, complaint) in [
            ("a $", "invalid parameter \"$\""),
            ("$-b", "invalid parameter \"$-b\""),
            ("${}", "invalid parameter \"${}\""),
            ("${a", "the closing bracket in \"a\" variable is missing"),
        ] {
            let words = std::iter::once(text.as_bytes());
            let made = Format::new(&mut Variables::new(), b"x", Escape::Default, words);
            assert_eq!(made.unwrap_err().to_string(), complaint);
        }
    }
}
