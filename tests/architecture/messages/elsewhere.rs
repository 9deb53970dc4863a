//! What the test cannot read from a call: functions whose texts are made elsewhere, and texts that
//! are no severe messages.

/// What makes the texts that a function writes.
#[derive(Debug)]
pub enum Maker {
    /// An item of a file: a function, a constant, or a type's `Display`.
    Item(&'static str, &'static str),
    /// Calls of a function, in files below this folder.
    Calls(&'static str, &'static str),
}
use Maker::{Calls, Item};

/// Functions that name a severe level and have no text: what makes their texts. A function without
/// makers writes nothing, or only what a script or the configuration gives it.
pub const ELSEWHERE: &[(&str, &str, &[Maker])] = &[
    // Levels as values.
    ("log/directive.rs", "level", &[]),
    ("log/flood.rs", "judge", &[]),
    ("log/level.rs", "-", &[]),
    ("log/line.rs", "empty", &[]),
    ("log/syslog.rs", "level", &[Item("log/lib.rs", "complain")]),
    ("http/modules/limit_req/refusal.rs", "default", &[]),
    ("http/modules/limit_req/refusal.rs", "log_level", &[]),
    (
        "http/modules/limit_req/mod.rs",
        "delay_level",
        &[Item("http/modules/limit_req/mod.rs", "reject"), Item("values/limit_conn.rs", "take")],
    ),
    ("stream/settings.rs", "new", &[]),
    ("stream/directives.rs", "-", &[]),
    ("server/cycle.rs", "error_log", &[]),
    // Errors of the configuration.
    ("server/cycle.rs", "log_error", &[]),
    // What scripts write.
    ("http/modules/lua/api/log.rs", "level", &[]),
    // Texts of errors.
    ("values/regex.rs", "decide", &[Item("values/regex.rs", "gave_up")]),
    ("http/modules/route.rs", "handler", &[Item("values/regex.rs", "gave_up")]),
    (
        "values/log/writer.rs",
        "complain",
        &[Item("values/log/writer.rs", "send"), Item("values/log/writer.rs", "write_lines")],
    ),
    (
        "upstream/fault.rs",
        "securing",
        &[Item("tls/hello.rs", "HandshakeError"), Item("tls/verifier.rs", "verify_server_cert")],
    ),
    ("upstream/fault.rs", "unsecured", &[Item("ssl/load.rs", "LoadError")]),
    ("resolver/lib.rs", "tell", &[Calls("tell", "resolver")]),
    ("mail/session.rs", "fail", &[Calls("fail", "mail")]),
    ("mail/serve.rs", "no_header", &[Item("proto/proxy_protocol.rs", "HeaderError")]),
    (
        "mail/auth_http.rs",
        "exchange",
        &[Item("mail/auth_http.rs", "timeout_text"), Item("mail/serve.rs", "unreachable")],
    ),
    ("mail/upstream.rs", "not_connected", &[Item("mail/serve.rs", "unreachable")]),
    ("ssl/server/accept.rs", "level", &[Item("ssl/load.rs", "LoadError")]),
    ("ssl/ocsp/clients.rs", "status", &[Item("tls/x509/ocsp.rs", "OcspError")]),
    ("ssl/ocsp/clients.rs", "named", &[Item("ssl/ocsp/responder.rs", "ResponderError")]),
    ("ssl/ocsp/staple.rs", "renew", &[Item("tls/x509/ocsp.rs", "OcspError")]),
    ("ssl/ocsp/fetch.rs", "run", &[Item("ssl/ocsp/fetch.rs", "FetchError")]),
    ("http/modules/index.rs", "search", FILE),
    ("http/modules/static_.rs", "refuse", FILE),
    ("http/modules/rewrite/run.rs", "file_holds", FILE),
    ("http/core/try_files.rs", "search", FILE),
    ("http/files/mod.rs", "check_links", FILE),
    ("http/files/directory.rs", "refuse", &[Item("http/files/directory.rs", "log")]),
    ("http/files/directory.rs", "entries", &[Item("http/files/directory.rs", "log")]),
    ("http/files/disk.rs", "carry", DISK),
    ("http/files/disk.rs", "copy_file", DISK),
    ("http/files/disk.rs", "copy_over", DISK),
    ("http/files/disk.rs", "entries", DISK),
    ("http/files/disk.rs", "link_info", DISK),
    ("http/modules/dav/tree.rs", "target_info", DISK),
    (
        "http/modules/slice_filter.rs",
        "fail",
        &[Item("http/modules/slice_filter.rs", "header_filter")],
    ),
    ("http/modules/dav/mod.rs", "refuse", &[Calls("refuse", "http/modules/dav")]),
    ("http/modules/lua/phases.rs", "perform", SCRIPTS),
    ("http/modules/lua/handshake.rs", "perform", SCRIPTS),
    ("http/modules/lua/session/phases.rs", "load", SCRIPTS),
    ("http/modules/lua/to_server.rs", "perform", SCRIPTS),
    ("http/modules/lua/start.rs", "start", SCRIPTS),
    ("http/modules/lua/vm.rs", "run_and_tell", SCRIPTS),
    (
        "http/modules/lua/api/socket.rs",
        "tell_failed",
        &[Item("http/modules/lua/socket/error.rs", "in_log")],
    ),
    (
        "http/modules/lua/run/subject.rs",
        "log",
        &[
            Calls("log", "http/modules/lua/run/subject.rs"),
            Item("http/modules/lua/run.rs", "coroutine_failed"),
            Item("http/modules/lua/run.rs", "coroutine_returned"),
            Item("http/modules/lua/run.rs", "wait"),
        ],
    ),
    (
        "http/modules/ssi_filter/commands.rs",
        "read",
        &[Item("http/modules/ssi_filter/parser.rs", "unexpected")],
    ),
    (
        "http/modules/charset_filter/mod.rs",
        "header_filter",
        &[Item("http/modules/charset_filter/mod.rs", "no_map")],
    ),
    (
        "http/upstream/fault.rs",
        "complain",
        &[
            Calls("complain", "http/upstream"),
            Item("http/upstream/protocol.rs", "AnswerError"),
            Item("proto/http1/response.rs", "ResponseError"),
            Item("proto/fastcgi.rs", "RecordError"),
            Item("upstream/reply.rs", "BadReply"),
            Item("http/modules/fastcgi/protocol.rs", "FastCgiError"),
            Item("http/modules/memcached.rs", "MemcachedError"),
            Item("http/upstream/http2/message.rs", "MessageError"),
        ],
    ),
    ("http/upstream/protocol.rs", "level", &[Item("http/upstream/protocol.rs", "OutgoingError")]),
    ("http/body/error.rs", "level", &[Item("http/body/error.rs", "RequestBodyError")]),
    (
        "http/connection/head.rs",
        "without_header",
        &[Item("proto/proxy_protocol.rs", "HeaderError")],
    ),
    ("server/boot.rs", "send_signal", &[Item("server/pidfile.rs", "text")]),
    ("server/cycle.rs", "open_logs", &[Item("server/cycle.rs", "open_failed")]),
    ("server/cycle.rs", "open_zones", &[Item("zone/declare.rs", "ZoneError")]),
    ("server/trial.rs", "run", &[Item("server/trial.rs", "TrialError")]),
    ("server/worker/mod.rs", "new", &[Item("engine/files/pool.rs", "push")]),
];
pub const DISK: &[Maker] = &[Item("http/files/disk.rs", "broken")];
pub const FILE: &[Maker] = &[Item("http/files/mod.rs", "log")];
pub const SCRIPTS: &[Maker] = &[
    Item("http/modules/lua/vm.rs", "StartError"),
    Item("http/modules/lua/vm.rs", "ScriptError"),
    Item("http/modules/lua/script.rs", "Unloadable"),
];

/// Texts of these functions that are written at lower levels, or are no messages.
pub const NOT_SEVERE: &[&str] = &[
    "... answers were taken out of cache \"...\"",
    "... disconnected, bytes from/to client:.../..., bytes from/to upstream:.../...",
    "100 Continue could not be sent",
    "cannot load certificate: its variable is empty, there is none yet",
    "client intended to send body data larger than declared",
    "client prematurely closed stream",
    "client prematurely closed stream: only ... out of ... bytes of request body received",
    "client sent less body data than expected: ... out of ... bytes of request body received",
    "for ... of ... ms the event loop waited for a processor, at ...",
    "has no reader, its lines are dropped until the logs are reopened",
    "it will be tried again, and spans beyond otel_exporter's batches are dropped",
    "peer is healthy, ...",
    "prereading client data",
    "reading from",
    "sending to",
    "signal process started",
    "timed out (110: Connection timed out)",
    "the pipe \"...\" ...",
    "waited for a processor",
    "was held up",
];
