//! Lua directives of `stream`. The Lua module in `weir-http` compiles the scripts; this file notes
//! which phases have one.

use weir_conf::{Directive as Line, Error};
use weir_upstream::config::UpstreamBlock;

use crate::config::StreamScope;
use crate::directives::{StreamDirective, elsewhere, line};
use crate::settings::{GroupScript, SessionContent};

const HELLO: &str = "A Lua script that sees a client's first message of TLS, and may refuse it.";
const CERTIFICATE: &str =
    "A Lua script that chooses a certificate for a client of TLS, and may refuse it.";
const PREREAD: &str =
    "A Lua script of the preread phase, which may look at the client's first bytes.";
const CONTENT: &str = "A Lua script serves the session.";
const LOG: &str = "A Lua script that runs when a session is over.";
const INIT: &str = "A Lua script that each loop runs before it serves.";
const INIT_WORKER: &str = "A Lua script that each loop runs when it begins to serve.";
const BALANCER: &str = "A Lua script that chooses the server of each attempt.";
const FILE_OF_TLS: &str = "A file for the connections that scripts open, by TLS.";
const TLS: &str = "How scripts' connections speak TLS.";
const TIME: &str = "How long a script's socket may wait.";
const ACCEPTED: &str = "Accepted, without an effect.";

/// All Lua directives.
pub static TABLE: &[StreamDirective] = &[
    line("ssl_client_hello_by_lua_block", HELLO, hello),
    line("ssl_client_hello_by_lua_file", HELLO, hello),
    line("ssl_certificate_by_lua_block", CERTIFICATE, certificate),
    line("ssl_certificate_by_lua_file", CERTIFICATE, certificate),
    line("preread_by_lua_block", PREREAD, preread),
    line("preread_by_lua_file", PREREAD, preread),
    line("content_by_lua_block", CONTENT, content),
    line("content_by_lua_file", CONTENT, content),
    line("log_by_lua_block", LOG, log),
    line("log_by_lua_file", LOG, log),
    line(
        "preread_by_lua_no_postpone",
        "`preread_by_lua` runs before `ssl_preread` instead of behind it.",
        |s, d| {
            s.once(d)?;
            s.conf.scripts.early = d.flag()?;
            Ok(())
        },
    ),
    line(
        "lua_add_variable",
        "A variable that scripts may set. It has no value until then.",
        |s, d| {
            let Some(name) = d.arg(0) else { return Ok(()) };
            let reading = s.setup.reading();
            let name = reading.new_variable(d, name)?;
            reading.variables.stored_or(name.as_bytes(), |_, _| false);
            Ok(())
        },
    ),
    elsewhere("init_by_lua_block", INIT),
    elsewhere("init_by_lua_file", INIT),
    elsewhere("init_worker_by_lua_block", INIT_WORKER),
    elsewhere("init_worker_by_lua_file", INIT_WORKER),
    elsewhere("balancer_by_lua_block", BALANCER),
    elsewhere("balancer_by_lua_file", BALANCER),
    elsewhere("lua_shared_dict", "A dictionary in shared memory, for all loops: name and size."),
    elsewhere("lua_package_path", "Where `require` looks for modules in Lua."),
    elsewhere("lua_package_cpath", "Where `require` looks for modules in C."),
    elsewhere(
        "lua_capture_error_log",
        "How many bytes of its newest lines in error logs each loop keeps for scripts.",
    ),
    elsewhere("lua_max_pending_timers", "Timers of a loop that may wait."),
    elsewhere("lua_max_running_timers", "Timers of a loop that may run at a time."),
    elsewhere("lua_check_client_abort", "Ends a script that waits when its client has gone."),
    elsewhere("lua_max_run_time", "How long a script may compute without a pause; 0: no limit."),
    elsewhere(
        "lua_regex_match_limit",
        "How many steps a pattern of `ngx.re` may take; 0: a million.",
    ),
    elsewhere("lua_socket_log_errors", "Logs failures of a script's sockets."),
    elsewhere("lua_socket_connect_timeout", TIME),
    elsewhere("lua_socket_send_timeout", TIME),
    elsewhere("lua_socket_read_timeout", TIME),
    elsewhere("lua_socket_keepalive_timeout", "How long an idle connection stays in its pool."),
    elsewhere("lua_socket_pool_size", "Idle connections that are kept for one server."),
    elsewhere("lua_ssl_protocols", TLS),
    elsewhere("lua_ssl_ciphers", TLS),
    elsewhere("lua_ssl_verify_depth", TLS),
    elsewhere("lua_ssl_conf_command", TLS),
    elsewhere("lua_ssl_trusted_certificate", FILE_OF_TLS),
    elsewhere("lua_ssl_crl", FILE_OF_TLS),
    elsewhere("lua_ssl_certificate", FILE_OF_TLS),
    elsewhere("lua_ssl_certificate_key", FILE_OF_TLS),
    elsewhere("lua_load_resty_core", ACCEPTED),
    elsewhere("lua_sa_restart", ACCEPTED),
    elsewhere("lua_regex_cache_max_entries", ACCEPTED),
    elsewhere("lua_socket_buffer_size", ACCEPTED),
    elsewhere("lua_socket_send_lowat", ACCEPTED),
    elsewhere("lua_code_cache", "Scripts are always compiled once; `off` is not heeded."),
];

/// `balancer_by_lua_block` and `balancer_by_lua_file` of an `upstream`
pub fn balancer(
    block: &mut UpstreamBlock<GroupScript>,
    warnings: &mut Vec<Error>,
    d: &Line,
) -> Result<(), Error> {
    if std::mem::replace(&mut block.extras.chooses, true) {
        return Err(d.problem("is duplicate"));
    }
    if block.balance.is_some() {
        warnings.push(d.warning("load balancing method redefined"));
    }
    Ok(())
}

/// Whether any server has `ssl_client_hello_by_lua`: such a script may set the TLS versions before
/// the server is chosen.
pub fn has_hello_script(lines: &[Line]) -> bool {
    let is_one = |d: &Line| d.name.bytes.starts_with(b"ssl_client_hello_by_lua");
    lines.iter().any(|d| is_one(d) || d.name.is("server") && d.block().iter().any(is_one))
}

fn hello(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<(), Error> {
    only(s, d, "ssl_client_hello_by_lua")?;
    s.conf.scripts.hello = true;
    Ok(())
}

fn certificate(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<(), Error> {
    only(s, d, "ssl_certificate_by_lua")?;
    s.conf.scripts.certificate = true;
    Ok(())
}

/// Allows one script of a phase in a block, `..._block` or `..._file`.
fn only(s: &mut StreamScope<'_, '_>, d: &Line, family: &str) -> Result<(), Error> {
    if s.first_of(family) { Ok(()) } else { Err(d.problem("is duplicate")) }
}

fn preread(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<(), Error> {
    only(s, d, "preread_by_lua")?;
    s.conf.scripts.preread = true;
    Ok(())
}

fn content(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<(), Error> {
    only(s, d, "content_by_lua")?;
    s.conf.content = SessionContent::Script;
    Ok(())
}

fn log(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<(), Error> {
    only(s, d, "log_by_lua")?;
    s.conf.scripts.log = true;
    Ok(())
}
