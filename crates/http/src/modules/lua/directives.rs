//! The module's directives.

use std::time::Duration;

use weir_conf::{Directive as Line, Error};
use weir_zone::Use;

use super::balancer;
use super::conf::{CONF, Conf};
use super::dict;
use super::phases::CONTENT;
use super::script::{Script, ScriptId, draft, read, read_known};
use super::tls;
use super::to_server;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::upstream::passing::{Part, count, joined};

/// The directives of a phase's script, in three forms.
macro_rules! scripts {
    ($(($inline:literal, $block:literal, $file:literal) $set:expr, $help:literal;)*) => {
        &[$(
            Directive { name: $inline, help: $help, set: Set::Simple($set) },
            Directive { name: $block, help: $help, set: Set::Simple($set) },
            Directive { name: $file, help: $help, set: Set::Simple($set) },
        )*]
    };
}

const PHASES: &[Directive] = scripts! {
    ("init_by_lua", "init_by_lua_block", "init_by_lua_file")
        init,
        "A Lua script that each loop runs before it serves.";
    ("init_worker_by_lua", "init_worker_by_lua_block", "init_worker_by_lua_file")
        init_worker,
        "A Lua script that each loop runs when it begins to serve.";
    ("content_by_lua", "content_by_lua_block", "content_by_lua_file")
        content, "A Lua script answers.";
    ("rewrite_by_lua", "rewrite_by_lua_block", "rewrite_by_lua_file")
        |s, d| place(s, d, |conf| &mut conf.rewrite),
        "A Lua script at the end of the rewrite phase.";
    ("access_by_lua", "access_by_lua_block", "access_by_lua_file")
        |s, d| place(s, d, |conf| &mut conf.access),
        "A Lua script at the end of the access phase.";
    ("header_filter_by_lua", "header_filter_by_lua_block", "header_filter_by_lua_file")
        |s, d| place(s, d, |conf| &mut conf.header_filter),
        "A Lua script that sees the head of the answer, and may change it.";
    ("body_filter_by_lua", "body_filter_by_lua_block", "body_filter_by_lua_file")
        |s, d| place(s, d, |conf| &mut conf.body_filter),
        "A Lua script that sees each piece of the answer's body, and may change it.";
    ("log_by_lua", "log_by_lua_block", "log_by_lua_file")
        |s, d| place(s, d, |conf| &mut conf.log),
        "A Lua script that runs when a request is over.";
};

const SETTINGS: &[Directive] = &[
    Directive {
        name: "ssl_client_hello_by_lua_block",
        help: "A Lua script that sees a client's first message of TLS, and may refuse it.",
        set: Set::Simple(client_hello),
    },
    Directive {
        name: "ssl_client_hello_by_lua_file",
        help: "A Lua script that sees a client's first message of TLS, and may refuse it.",
        set: Set::Simple(client_hello),
    },
    Directive {
        name: "ssl_session_fetch_by_lua_block",
        help: "A Lua script that finds the session that a client of TLS 1.2 would resume by its id.",
        set: Set::Simple(session_fetch),
    },
    Directive {
        name: "ssl_session_fetch_by_lua_file",
        help: "A Lua script that finds the session that a client of TLS 1.2 would resume by its id.",
        set: Set::Simple(session_fetch),
    },
    Directive {
        name: "ssl_session_store_by_lua_block",
        help: "A Lua script that keeps sessions that clients of TLS 1.2 can resume by their ids.",
        set: Set::Simple(session_store),
    },
    Directive {
        name: "ssl_session_store_by_lua_file",
        help: "A Lua script that keeps sessions that clients of TLS 1.2 can resume by their ids.",
        set: Set::Simple(session_store),
    },
    Directive {
        name: "ssl_certificate_by_lua_block",
        help: "A Lua script that chooses a certificate for a client of TLS, and may refuse it.",
        set: Set::Simple(certificate),
    },
    Directive {
        name: "ssl_certificate_by_lua_file",
        help: "A Lua script that chooses a certificate for a client of TLS, and may refuse it.",
        set: Set::Simple(certificate),
    },
    Directive {
        name: "proxy_ssl_certificate_by_lua_block",
        help: "A Lua script that chooses the certificate that servers are shown.",
        set: Set::Simple(to_server::certificate),
    },
    Directive {
        name: "proxy_ssl_certificate_by_lua_file",
        help: "A Lua script that chooses the certificate that servers are shown.",
        set: Set::Simple(to_server::certificate),
    },
    Directive {
        name: "proxy_ssl_verify_by_lua_block",
        help: "A Lua script that judges the certificates of servers.",
        set: Set::Simple(to_server::verify),
    },
    Directive {
        name: "proxy_ssl_verify_by_lua_file",
        help: "A Lua script that judges the certificates of servers.",
        set: Set::Simple(to_server::verify),
    },
    Directive {
        name: "lua_upstream_skip_openssl_default_verify",
        help: "Certificates of servers need not lead to an authority where `proxy_ssl_verify_by_lua` judges them.",
        set: Set::Simple(to_server::any_path),
    },
    Directive {
        name: "precontent_by_lua_block",
        help: "A Lua script behind the access phase, before the content.",
        set: Set::Simple(precontent),
    },
    Directive {
        name: "precontent_by_lua_file",
        help: "A Lua script behind the access phase, before the content.",
        set: Set::Simple(precontent),
    },
    Directive {
        name: "server_rewrite_by_lua_block",
        help: "A Lua script of the server, before its locations are looked up.",
        set: Set::Simple(server_rewrite),
    },
    Directive {
        name: "server_rewrite_by_lua_file",
        help: "A Lua script of the server, before its locations are looked up.",
        set: Set::Simple(server_rewrite),
    },
    Directive {
        name: "balancer_by_lua_block",
        help: "A Lua script that chooses the server of each attempt.",
        set: Set::Simple(balancer::script),
    },
    Directive {
        name: "balancer_by_lua_file",
        help: "A Lua script that chooses the server of each attempt.",
        set: Set::Simple(balancer::script),
    },
    Directive {
        name: "balancer_keepalive",
        help: "How many idle connections to servers that a script has chosen each loop keeps.",
        set: Set::Simple(balancer::keepalive),
    },
    Directive {
        name: "exit_worker_by_lua_block",
        help: "A Lua script that each loop runs when it has ended.",
        set: Set::Simple(exit_worker),
    },
    Directive {
        name: "exit_worker_by_lua_file",
        help: "A Lua script that each loop runs when it has ended.",
        set: Set::Simple(exit_worker),
    },
    Directive {
        name: "lua_shared_dict",
        help: "A dictionary in shared memory, for all loops: name and size.",
        set: Set::Simple(shared_dict),
    },
    Directive {
        name: "lua_package_path",
        help: "Where `require` looks for modules in Lua; `;;` is the default path.",
        set: Set::Simple(|s, d| {
            s.once(d)?;
            draft(s.setup).package_path = d.arg(0).map(|word| word.bytes.clone());
            Ok(())
        }),
    },
    Directive {
        name: "lua_package_cpath",
        help: "Where `require` looks for modules in C; `;;` is the default path.",
        set: Set::Simple(|s, d| {
            s.once(d)?;
            draft(s.setup).package_cpath = d.arg(0).map(|word| word.bytes.clone());
            Ok(())
        }),
    },
    Directive {
        name: "lua_max_pending_timers",
        help: "Timers of a loop that may wait.",
        set: Set::Simple(|s, d| {
            s.once(d)?;
            draft(s.setup).pending_timers = Some(Line::number(d)?);
            Ok(())
        }),
    },
    Directive {
        name: "lua_max_running_timers",
        help: "Timers of a loop that may run at a time.",
        set: Set::Simple(|s, d| {
            s.once(d)?;
            draft(s.setup).running_timers = Some(Line::number(d)?);
            Ok(())
        }),
    },
    Directive {
        name: "lua_worker_thread_vm_pool_size",
        help: "How many functions run at a time beside the loops (`ngx.run_worker_thread`).",
        set: Set::Simple(|s, d| {
            s.once(d)?;
            draft(s.setup).worker_vms = Some(Line::number(d)?);
            Ok(())
        }),
    },
    Directive {
        name: "lua_regex_match_limit",
        help: "How many steps a pattern of `ngx.re` may take; 0: a million.",
        set: Set::Simple(|s, d| {
            s.once(d)?;
            draft(s.setup).match_limit = Some(Line::number(d)?).filter(|limit| *limit > 0);
            Ok(())
        }),
    },
    Directive {
        name: "lua_capture_error_log",
        help: "How many bytes of its newest lines in error logs each loop keeps for scripts (`ngx.errlog`).",
        set: Set::Simple(captured_log),
    },
    Directive {
        name: "lua_max_run_time",
        help: "How long a script may compute without a pause; 0: no limit.",
        set: Set::Simple(|s, d| {
            s.once(d)?;
            let limit = time(d)?;
            draft(s.setup).limited |= !limit.is_zero();
            CONF.change(&mut s.location).max_run_time = limit;
            Ok(())
        }),
    },
    Directive {
        name: "lua_load_resty_core",
        help: "Accepted: what that library adds is built in.",
        set: Set::Simple(accepted_flag),
    },
    Directive {
        name: "lua_sa_restart",
        help: "Accepted: signals interrupt no system call of weir.",
        set: Set::Simple(accepted_flag),
    },
    Directive {
        name: "lua_malloc_trim",
        help: "Accepted: the allocator gives memory back by itself.",
        set: Set::Simple(accepted_number),
    },
    Directive {
        name: "lua_thread_cache_max_entries",
        help: "Accepted: coroutines are not kept.",
        set: Set::Simple(accepted_number),
    },
    Directive {
        name: "lua_regex_cache_max_entries",
        help: "Accepted: each loop keeps up to 1,024 patterns.",
        set: Set::Simple(accepted_number),
    },
    Directive {
        name: "lua_socket_buffer_size",
        help: "Accepted: what is read of a socket is kept until a script takes it.",
        set: Set::Simple(accepted_size),
    },
    Directive {
        name: "lua_socket_send_lowat",
        help: "Accepted: the kernel says when a socket can be written to.",
        set: Set::Simple(accepted_size),
    },
    Directive {
        name: "lua_code_cache",
        help: "Scripts are always compiled once; `off` is not heeded.",
        set: Set::Simple(code_cache),
    },
    setting!(
        "rewrite_by_lua_no_postpone",
        CONF.early_rewrite,
        Line::flag,
        "`rewrite_by_lua` runs before `set`, `if` and kin instead of after them."
    ),
    setting!(
        "access_by_lua_no_postpone",
        CONF.early_access,
        Line::flag,
        "`access_by_lua` runs before `allow`, `auth_basic` and kin instead of after them."
    ),
    setting!(
        "precontent_by_lua_no_postpone",
        CONF.early_precontent,
        Line::flag,
        "`precontent_by_lua` runs before `try_files` and kin instead of after them."
    ),
    setting!(
        "lua_need_request_body",
        CONF.need_request_body,
        Line::flag,
        "Reads the client's body before a script runs."
    ),
    setting!(
        "lua_http10_buffering",
        CONF.http10_buffering,
        Line::flag,
        "Keeps an answer to a client of HTTP/1.0 back until its length is known."
    ),
    setting!(
        "lua_check_client_abort",
        CONF.check_client_abort,
        Line::flag,
        "Ends a script that waits when its client has gone."
    ),
    setting!(
        "lua_use_default_type",
        CONF.use_default_type,
        Line::flag,
        "Answers of scripts have the type that the location gives to others."
    ),
    setting!(
        "lua_transform_underscores_in_response_headers",
        CONF.underscores,
        Line::flag,
        "In names of `ngx.header`, `_` stands for `-`."
    ),
    setting!(
        "lua_socket_log_errors",
        CONF.socket_log_errors,
        Line::flag,
        "Logs failures of a script's sockets."
    ),
    setting!(
        "lua_socket_connect_timeout",
        CONF.connect_timeout,
        time,
        "How long a script's socket may take to connect."
    ),
    setting!(
        "lua_socket_send_timeout",
        CONF.send_timeout,
        time,
        "How long a script's socket may wait to send."
    ),
    setting!(
        "lua_socket_read_timeout",
        CONF.read_timeout,
        time,
        "How long a script's socket may wait to receive."
    ),
    setting!(
        "lua_socket_keepalive_timeout",
        CONF.keepalive_timeout,
        time,
        "How long an idle connection stays in its pool."
    ),
    setting!(
        "lua_socket_pool_size",
        CONF.pool_size,
        Line::number,
        "Idle connections that are kept for one server."
    ),
];

const TABLES: &[(&[Directive], Part)] =
    &[(PHASES, Part::All), (SETTINGS, Part::All), tls::SHARED, tls::OWN];

/// All directives of the module.
pub const DIRECTIVES: &[Directive] = &joined::<{ count(TABLES) }>(TABLES);

fn time(d: &Line) -> Result<Duration, Error> {
    d.msec().map(Duration::from_millis)
}

fn only(d: &Line, place: &mut Option<ScriptId>, id: ScriptId) -> Result<(), Error> {
    if place.replace(id).is_some() {
        return Err(d.problem("is duplicate"));
    }
    Ok(())
}

fn init(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let id = read_known(s, d, 0)?;
    s.setup.has_init_script = true;
    only(d, &mut draft(s.setup).init, id)
}

fn init_worker(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let id = read_known(s, d, 0)?;
    only(d, &mut draft(s.setup).init_worker, id)
}

fn exit_worker(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let id = read_known(s, d, 0)?;
    only(d, &mut draft(s.setup).exit_worker, id)
}

/// Reads the script of a phase. A block may have one form of the directive only.
fn place(
    s: &mut Scope<'_, '_>,
    d: &Line,
    field: fn(&mut Conf) -> &mut Option<Script>,
) -> Result<(), Error> {
    let script = only_script(s, d)?;
    *field(CONF.change(&mut s.location)) = Some(script);
    Ok(())
}

fn server_rewrite(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    place(s, d, |conf| &mut conf.server_rewrite)
}

fn precontent(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    place(s, d, |conf| &mut conf.precontent)
}

fn only_script(s: &mut Scope<'_, '_>, d: &Line) -> Result<Script, Error> {
    let name = d.name.lossy();
    let family = FAMILIES.iter().find(|family| name.starts_with(**family));
    if !s.first_of(family.copied().unwrap_or_default()) {
        return Err(d.problem("is duplicate"));
    }
    read(s, d, 0)
}

/// Directives with several forms, of which a block may have one.
const FAMILIES: &[&str] = &[
    "server_rewrite_by_lua",
    "rewrite_by_lua",
    "access_by_lua",
    "precontent_by_lua",
    "content_by_lua",
    "header_filter_by_lua",
    "body_filter_by_lua",
    "log_by_lua",
    "ssl_client_hello_by_lua",
    "ssl_session_fetch_by_lua",
    "ssl_session_store_by_lua",
    "ssl_certificate_by_lua",
];

fn client_hello(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    in_handshake(s, d, |conf| &mut conf.client_hello)
}

fn certificate(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    in_handshake(s, d, |conf| &mut conf.certificate)
}

fn session_fetch(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    in_handshake(s, d, |conf| &mut conf.session_fetch)
}

fn session_store(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    in_handshake(s, d, |conf| &mut conf.session_store)
}

/// Reads the script of a handshake, whose file name cannot have variables.
fn in_handshake(
    s: &mut Scope<'_, '_>,
    d: &Line,
    field: fn(&mut Conf) -> &mut Option<Script>,
) -> Result<(), Error> {
    let script = only_script(s, d)?;
    *field(CONF.change(&mut s.location)) = Some(Script::Known(script.known(d)?));
    Ok(())
}

fn content(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let script = only_script(s, d)?;
    s.answer_with(CONTENT.with(script));
    Ok(())
}

fn shared_dict(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    /// OpenResty's minimum.
    const SMALLEST: u64 = 8192;
    let [name, size] = d.args.as_slice() else { return Ok(()) };
    let text = name.lossy();
    if text.is_empty() {
        return Err(d.error_at(name, format!("invalid lua shared dict name \"{text}\"")));
    }
    let bytes = weir_conf::values::size(&size.bytes).filter(|size| *size >= SMALLEST);
    let Some(bytes) = bytes else {
        return Err(d.invalid("lua shared dict size", size));
    };
    if draft(s.setup).dicts.iter().any(|zone| zone.name() == text) {
        let text = format!("lua_shared_dict \"{text}\" is already defined as \"{text}\"");
        return Err(d.error_at(name, text));
    }
    let tag = if s.setup.reads_sessions { dict::STREAM_TAG } else { dict::TAG };
    let purpose = Use::of(tag, dict::WORDS);
    let zone = s.setup.inputs.zones.declare(&text, bytes, purpose);
    draft(s.setup).dicts.push(zone.map_err(|text| d.error(text))?);
    Ok(())
}

fn captured_log(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    /// OpenResty's minimum.
    const SMALLEST: u64 = 4096;
    s.once(d)?;
    let Some(word) = d.arg(0) else { return Ok(()) };
    let bytes = weir_conf::values::size(&word.bytes).filter(|size| *size >= SMALLEST);
    let Some(bytes) = bytes.and_then(|bytes| usize::try_from(bytes).ok()) else {
        let text = word.lossy();
        let text = format!("invalid capture error log size \"{text}\", minimum size is {SMALLEST}");
        return Err(d.error_at(word, text));
    };
    draft(s.setup).captured_log = Some(bytes);
    Ok(())
}

fn accepted_flag(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    d.flag().map(drop)
}

fn accepted_number(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    d.number().map(drop)
}

fn accepted_size(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    d.size().map(drop)
}

fn code_cache(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    if !d.flag()? {
        let text = "\"lua_code_cache off\" is not heeded: scripts are compiled once";
        s.setup.warnings.push(d.warning(text));
    }
    Ok(())
}
