//! The directives of `core`.

use weir_conf::Directive as Line;
use weir_proto::conditional::ModifiedSince;

use super::{blocks, errors, limit_except, server_conf, set, symlinks, try_files};
use crate::body::Linger;
use crate::config::scope::{Directive, Set, setting};
use crate::site::core::BodyInFile;

/// `if_modified_since`
const MODIFIED_SINCE: &[(&str, ModifiedSince)] = &[
    ("off", ModifiedSince::Off),
    ("exact", ModifiedSince::Exact),
    ("before", ModifiedSince::Before),
];

/// `client_body_in_file_only`
const IN_FILE: &[(&str, BodyInFile)] =
    &[("off", BodyInFile::Off), ("on", BodyInFile::On), ("clean", BodyInFile::Clean)];

/// `lingering_close`
const LINGERING: &[(&str, Linger)] =
    &[("off", Linger::Off), ("on", Linger::On), ("always", Linger::Always)];

/// All directives of `core`.
pub const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "server",
        help: "A virtual server; in `upstream`, a server of the group.",
        set: Set::Block(blocks::server),
    },
    Directive {
        name: "location",
        help: "Settings for some paths.",
        set: Set::Block(blocks::location),
    },
    Directive {
        name: "limit_except",
        help: "Settings for all methods but those named.",
        set: Set::Block(limit_except::set),
    },
    Directive {
        name: "types",
        help: "Types by file name extension.",
        set: Set::Simple(blocks::types),
    },
    Directive {
        name: "listen",
        help: "An address that the server answers on.",
        set: Set::Simple(server_conf::listen),
    },
    Directive {
        name: "server_name",
        help: "Host names that select the server.",
        set: Set::Simple(server_conf::server_name),
    },
    Directive {
        name: "client_header_timeout",
        help: "How long a request's head may take.",
        set: Set::Simple(server_conf::client_header_timeout),
    },
    Directive {
        name: "client_header_buffer_size",
        help: "The first part of the limit of a head's size.",
        set: Set::Simple(server_conf::client_header_buffer_size),
    },
    Directive {
        name: "large_client_header_buffers",
        help: "The limit of a head's size: how many lines, how long each.",
        set: Set::Simple(server_conf::large_client_header_buffers),
    },
    Directive {
        name: "max_headers",
        help: "How many lines a head may have.",
        set: Set::Simple(server_conf::max_headers),
    },
    Directive {
        name: "ignore_invalid_headers",
        help: "Whether header lines with odd names are dropped.",
        set: Set::Simple(server_conf::ignore_invalid_headers),
    },
    Directive {
        name: "underscores_in_headers",
        help: "Whether header names may hold underscores.",
        set: Set::Simple(server_conf::underscores_in_headers),
    },
    Directive {
        name: "merge_slashes",
        help: "Whether adjacent slashes of a path count as one.",
        set: Set::Simple(server_conf::merge_slashes),
    },
    Directive {
        name: "client_body_early_read",
        help: "Reads the body before anything else looks at the request.",
        set: Set::Simple(server_conf::early_read),
    },
    Directive {
        name: "connection_pool_size",
        help: "Accepted: weir has no pools of memory to size.",
        set: Set::Simple(server_conf::connection_pool_size),
    },
    Directive {
        name: "request_pool_size",
        help: "Accepted: weir has no pools of memory to size.",
        set: Set::Simple(server_conf::request_pool_size),
    },
    Directive {
        name: "root",
        help: "The directory that paths are looked up in.",
        set: Set::Simple(set::root),
    },
    Directive {
        name: "alias",
        help: "The directory that stands for the location's name.",
        set: Set::Simple(set::root),
    },
    Directive {
        name: "try_files",
        help: "The first of several files that exists, or another way.",
        set: Set::Simple(try_files::set),
    },
    Directive { name: "error_page", help: "The page for a status.", set: Set::Simple(errors::set) },
    setting!(
        "recursive_error_pages",
        core.recursive_error_pages,
        Line::flag,
        "Whether an error page may have an error page."
    ),
    Directive {
        name: "internal",
        help: "Only internal redirects reach the location.",
        set: Set::Simple(set::internal),
    },
    Directive {
        name: "default_type",
        help: "The type where the extension tells none.",
        set: Set::Simple(set::default_type),
    },
    setting!(
        "satisfy",
        core.satisfy_any,
        |d: &Line| d.choice(&[("all", false), ("any", true)]),
        "Whether all access rules must agree, or one."
    ),
    setting!(
        "auth_delay",
        core.auth_delay,
        Line::duration,
        "How long an answer of 401 waits, against guessing."
    ),
    Directive {
        name: "error_log",
        help: "Where errors are written, and which.",
        set: Set::Simple(set::error_log),
    },
    setting!("log_not_found", core.log_not_found, Line::flag, "Whether missing files are logged."),
    setting!(
        "post_action",
        core.post_action,
        |d: &Line| Ok(d.arg(0).map_or_else(Vec::new, |word| word.bytes.clone())),
        "A subrequest after the answer; its own answer is dropped."
    ),
    setting!(
        "log_subrequest",
        core.log_subrequest,
        Line::flag,
        "Whether subrequests have lines of their own in the access log."
    ),
    Directive {
        name: "server_tokens",
        help: "Whether answers tell weir's version.",
        set: Set::Simple(set::server_tokens),
    },
    setting!("etag", core.etag, Line::flag, "Whether files get an ETag."),
    setting!(
        "if_modified_since",
        core.if_modified_since,
        |d: &Line| d.choice(MODIFIED_SINCE),
        "How If-Modified-Since is compared."
    ),
    Directive {
        name: "max_ranges",
        help: "How many ranges a request may ask for.",
        set: Set::Simple(set::max_ranges),
    },
    setting!(
        "chunked_transfer_encoding",
        core.chunked,
        Line::flag,
        "Whether bodies of unknown length are sent in chunks."
    ),
    setting!(
        "absolute_redirect",
        core.absolute_redirect,
        Line::flag,
        "Whether redirects name scheme and host."
    ),
    setting!(
        "server_name_in_redirect",
        core.server_name_in_redirect,
        Line::flag,
        "Whether redirects name the server's first name."
    ),
    setting!(
        "port_in_redirect",
        core.port_in_redirect,
        Line::flag,
        "Whether redirects name the port."
    ),
    setting!(
        "msie_padding",
        core.msie_padding,
        Line::flag,
        "Whether short error pages are padded for browsers that hide them."
    ),
    setting!(
        "msie_refresh",
        core.msie_refresh,
        Line::flag,
        "Whether MSIE is redirected by a page."
    ),
    setting!(
        "postpone_output",
        core.postpone_output,
        Line::size,
        "How much is gathered before it is sent."
    ),
    setting!(
        "sendfile",
        core.sendfile,
        Line::flag,
        "Whether files are sent without a copy where the loop has measured that a copy costs more."
    ),
    setting!(
        "sendfile_max_chunk",
        core.sendfile_max_chunk,
        Line::size,
        "How much of a file is sent before other connections get their turn."
    ),
    Directive {
        name: "tcp_nopush",
        help: "Accepted: a head and the first bytes of its body always leave together.",
        set: Set::Simple(set::accept),
    },
    setting!(
        "tcp_nodelay",
        core.tcp_nodelay,
        Line::flag,
        "Whether the kernel may not wait for more to send."
    ),
    Directive {
        name: "aio",
        help: "The threads that wait for files; `off`: the loop waits, as nginx's; `reads`, `opens`: threads for reading, for opening too. By default no loop waits.",
        set: Set::Simple(set::aio),
    },
    Directive {
        name: "aio_write",
        help: "Accepted: files never block a loop of weir's.",
        set: Set::Simple(set::accept),
    },
    Directive {
        name: "directio",
        help: "Accepted: files are always read through the page cache.",
        set: Set::Simple(set::directio),
    },
    Directive {
        name: "directio_alignment",
        help: "Accepted: files are always read through the page cache.",
        set: Set::Simple(set::accept),
    },
    Directive {
        name: "read_ahead",
        help: "Accepted: the kernel's own read-ahead is in force, as in nginx on Linux.",
        set: Set::Simple(set::accept),
    },
    Directive {
        name: "output_buffers",
        help: "Accepted: weir sizes its buffers itself.",
        set: Set::Simple(set::accept),
    },
    Directive {
        name: "open_file_cache",
        help: "Keeps files open between requests.",
        set: Set::Simple(set::open_file_cache),
    },
    Directive {
        name: "open_file_cache_valid",
        help: "How long a kept file is not looked at again.",
        set: Set::Simple(set::open_file_cache_valid),
    },
    Directive {
        name: "open_file_cache_min_uses",
        help: "How often a file is asked for before it stays open.",
        set: Set::Simple(set::open_file_cache_min_uses),
    },
    Directive {
        name: "open_file_cache_errors",
        help: "Whether failures to open a file are remembered, too.",
        set: Set::Simple(set::open_file_cache_errors),
    },
    Directive {
        name: "open_file_cache_events",
        help: "Accepted: on Linux nginx has no file events either.",
        set: Set::Simple(set::accept),
    },
    Directive {
        name: "disable_symlinks",
        help: "Whether symbolic links may lead to a file.",
        set: Set::Simple(symlinks::set),
    },
    Directive {
        name: "keepalive_timeout",
        help: "How long an idle connection stays.",
        set: Set::Simple(set::keepalive_timeout),
    },
    setting!(
        "keepalive_min_timeout",
        core.keepalive_min_timeout,
        Line::duration,
        "How long an idle connection stays at least when weir ends."
    ),
    setting!(
        "keepalive_requests",
        core.keepalive_requests,
        Line::number,
        "Requests on one connection."
    ),
    setting!(
        "keepalive_time",
        core.keepalive_time,
        Line::duration,
        "How long requests are taken on one connection."
    ),
    Directive {
        name: "keepalive_disable",
        help: "Browsers that get no second request on a connection.",
        set: Set::Simple(set::keepalive_disable),
    },
    setting!(
        "send_timeout",
        core.send_timeout,
        Line::duration,
        "How long a client may take nothing of an answer."
    ),
    Directive {
        name: "send_lowat",
        help: "Ignored with a warning, as in nginx on Linux.",
        set: Set::Simple(set::send_lowat),
    },
    setting!(
        "reset_timedout_connection",
        core.reset_timedout_connection,
        Line::flag,
        "Whether connections that timed out are reset."
    ),
    setting!(
        "client_max_body_size",
        core.client_max_body_size,
        Line::offset,
        "The largest body that is taken; 0 is no limit."
    ),
    setting!(
        "client_body_buffer_size",
        core.client_body_buffer_size,
        Line::size,
        "How much of a body is kept in memory."
    ),
    setting!(
        "client_body_timeout",
        core.client_body_timeout,
        Line::duration,
        "How long a client may send nothing of a body."
    ),
    Directive {
        name: "client_body_temp_path",
        help: "Where bodies that do not fit into memory are kept.",
        set: Set::Simple(set::client_body_temp_path),
    },
    setting!(
        "client_body_in_file_only",
        core.client_body_in_file_only,
        |d: &Line| d.choice(IN_FILE),
        "Whether every body is written to a file."
    ),
    setting!(
        "client_body_in_single_buffer",
        core.client_body_in_single_buffer,
        Line::flag,
        "Accepted: a body in memory is joined where it is needed in one piece."
    ),
    setting!(
        "subrequest_output_buffer_size",
        core.subrequest_output_buffer_size,
        Line::size,
        "How much of a subrequest's answer is kept in memory."
    ),
    setting!(
        "lingering_close",
        core.lingering_close,
        |d: &Line| d.choice(LINGERING),
        "Whether a client may finish sending before weir closes."
    ),
    setting!(
        "lingering_time",
        core.lingering_time,
        Line::duration,
        "How long a client may finish sending."
    ),
    setting!(
        "lingering_timeout",
        core.lingering_timeout,
        Line::duration,
        "How long it may send nothing in that time."
    ),
    Directive {
        name: "limit_rate",
        help: "Bytes a second of an answer.",
        set: Set::Simple(set::limit_rate),
    },
    Directive {
        name: "limit_rate_after",
        help: "Bytes of an answer before the limit applies.",
        set: Set::Simple(set::limit_rate),
    },
    Directive {
        name: "resolver",
        help: "Name servers for names of upstreams.",
        set: Set::Simple(|s, d| {
            crate::config::scope::Scope::change(&mut s.location.core).resolver =
                Some(std::sync::Arc::new(weir_resolver::ResolverConf::read(d)?));
            Ok(())
        }),
    },
    setting!(
        "resolver_timeout",
        core.resolver_timeout,
        Line::duration,
        "How long a name's address may take."
    ),
    Directive {
        name: "early_hints",
        help: "When an upstream's early hints are passed on.",
        set: Set::Simple(set::early_hints),
    },
    Directive {
        name: "variables_hash_max_size",
        help: "Accepted: weir sizes its tables itself.",
        set: Set::Simple(set::accept),
    },
    Directive {
        name: "variables_hash_bucket_size",
        help: "Accepted: weir sizes its tables itself.",
        set: Set::Simple(set::accept),
    },
    Directive {
        name: "server_names_hash_max_size",
        help: "Accepted: weir sizes its tables itself.",
        set: Set::Simple(set::accept),
    },
    Directive {
        name: "server_names_hash_bucket_size",
        help: "How long names may be; without it weir has no such limit.",
        set: Set::Simple(server_conf::names_bucket),
    },
    Directive {
        name: "types_hash_max_size",
        help: "Accepted: weir sizes its tables itself.",
        set: Set::Simple(set::accept),
    },
    Directive {
        name: "types_hash_bucket_size",
        help: "Accepted: weir sizes its tables itself.",
        set: Set::Simple(set::accept),
    },
];
