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
        help: "Settings for requests with certain paths.",
        set: Set::Block(blocks::location),
    },
    Directive {
        name: "limit_except",
        help: "Settings for all methods except the listed ones.",
        set: Set::Block(limit_except::set),
    },
    Directive {
        name: "types",
        help: "Content types by file name extension.",
        set: Set::Simple(blocks::types),
    },
    Directive {
        name: "listen",
        help: "An address that the server accepts connections on.",
        set: Set::Simple(server_conf::listen),
    },
    Directive {
        name: "server_name",
        help: "Host names that select the server.",
        set: Set::Simple(server_conf::server_name),
    },
    Directive {
        name: "client_header_timeout",
        help: "The time limit for receiving a request's head.",
        set: Set::Simple(server_conf::client_header_timeout),
    },
    Directive {
        name: "client_header_buffer_size",
        help: "The size of a head's first buffer, a part of the limit of its size.",
        set: Set::Simple(server_conf::client_header_buffer_size),
    },
    Directive {
        name: "large_client_header_buffers",
        help: "The limit of a head's size: the number of further buffers, and the size of each, which also limits a line.",
        set: Set::Simple(server_conf::large_client_header_buffers),
    },
    Directive {
        name: "max_headers",
        help: "The maximum number of header lines of a request.",
        set: Set::Simple(server_conf::max_headers),
    },
    Directive {
        name: "ignore_invalid_headers",
        help: "Whether header lines with invalid names are dropped.",
        set: Set::Simple(server_conf::ignore_invalid_headers),
    },
    Directive {
        name: "underscores_in_headers",
        help: "Whether header names may contain underscores.",
        set: Set::Simple(server_conf::underscores_in_headers),
    },
    Directive {
        name: "merge_slashes",
        help: "Whether adjacent slashes of a path count as one.",
        set: Set::Simple(server_conf::merge_slashes),
    },
    Directive {
        name: "client_body_early_read",
        help: "Reads the body before all phases, if a value is neither empty nor `0`.",
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
        help: "The directory of files; the whole path is appended to it.",
        set: Set::Simple(set::root),
    },
    Directive {
        name: "alias",
        help: "The directory that replaces the location's name in the path of a file.",
        set: Set::Simple(set::root),
    },
    Directive {
        name: "try_files",
        help: "Serves the first file that exists; the last argument is a fallback.",
        set: Set::Simple(try_files::set),
    },
    Directive {
        name: "error_page",
        help: "The page or URL for a status.",
        set: Set::Simple(errors::set),
    },
    setting!(
        "recursive_error_pages",
        core.recursive_error_pages,
        Line::flag,
        "Whether an error page may have an error page."
    ),
    Directive {
        name: "internal",
        help: "Only internal redirects and subrequests reach the location.",
        set: Set::Simple(set::internal),
    },
    Directive {
        name: "default_type",
        help: "The content type for extensions that are not in `types`.",
        set: Set::Simple(set::default_type),
    },
    setting!(
        "satisfy",
        core.satisfy_any,
        |d: &Line| d.choice(&[("all", false), ("any", true)]),
        "Whether all access checks must pass, or any of them."
    ),
    setting!(
        "auth_delay",
        core.auth_delay,
        Line::duration,
        "The delay of responses with status 401, against guessing of passwords."
    ),
    Directive {
        name: "error_log",
        help: "The file for errors, and the level.",
        set: Set::Simple(set::error_log),
    },
    setting!("log_not_found", core.log_not_found, Line::flag, "Whether missing files are logged."),
    setting!(
        "post_action",
        core.post_action,
        |d: &Line| Ok(d.arg(0).map_or_else(Vec::new, |word| word.bytes.clone())),
        "Continues a finished request in this location; the response is discarded."
    ),
    setting!(
        "log_subrequest",
        core.log_subrequest,
        Line::flag,
        "Whether subrequests have lines of their own in the access log."
    ),
    Directive {
        name: "server_tokens",
        help: "Whether responses show weir's version.",
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
        help: "The maximum number of ranges of a request.",
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
        "Whether redirects include scheme and host."
    ),
    setting!(
        "server_name_in_redirect",
        core.server_name_in_redirect,
        Line::flag,
        "Whether the host of redirects is the server's first name."
    ),
    setting!(
        "port_in_redirect",
        core.port_in_redirect,
        Line::flag,
        "Whether redirects include the port."
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
        "Whether MSIE is redirected by a page with `Refresh`."
    ),
    setting!(
        "postpone_output",
        core.postpone_output,
        Line::size,
        "The size from which output is sent."
    ),
    setting!(
        "sendfile",
        core.sendfile,
        Line::flag,
        "Whether files are sent without a copy, if the loop has measured that a copy costs more."
    ),
    setting!(
        "sendfile_max_chunk",
        core.sendfile_max_chunk,
        Line::size,
        "How much of a file is sent before other connections may send."
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
        "Whether the kernel sends small segments without delay (TCP_NODELAY)."
    ),
    Directive {
        name: "aio",
        help: "The threads for file operations; `off`: the loop itself, as in nginx; `reads`, `opens`: threads for reading, for opening too. By default no loop waits for a disk.",
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
        help: "How long a cached file is used before it is checked again.",
        set: Set::Simple(set::open_file_cache_valid),
    },
    Directive {
        name: "open_file_cache_min_uses",
        help: "The number of uses from which a file stays open.",
        set: Set::Simple(set::open_file_cache_min_uses),
    },
    Directive {
        name: "open_file_cache_errors",
        help: "Whether failures to open a file are cached as well.",
        set: Set::Simple(set::open_file_cache_errors),
    },
    Directive {
        name: "open_file_cache_events",
        help: "Accepted: on Linux nginx has no file events either.",
        set: Set::Simple(set::accept),
    },
    Directive {
        name: "disable_symlinks",
        help: "Refuses files with symbolic links in their paths.",
        set: Set::Simple(symlinks::set),
    },
    Directive {
        name: "keepalive_timeout",
        help: "How long an idle connection is kept.",
        set: Set::Simple(set::keepalive_timeout),
    },
    setting!(
        "keepalive_min_timeout",
        core.keepalive_min_timeout,
        Line::duration,
        "How long an idle connection is kept at least during a graceful shutdown."
    ),
    setting!(
        "keepalive_requests",
        core.keepalive_requests,
        Line::number,
        "The maximum number of requests on a connection."
    ),
    setting!(
        "keepalive_time",
        core.keepalive_time,
        Line::duration,
        "The maximum age of a connection at which it gets further requests."
    ),
    Directive {
        name: "keepalive_disable",
        help: "Browsers whose connections are closed after a response.",
        set: Set::Simple(set::keepalive_disable),
    },
    setting!(
        "send_timeout",
        core.send_timeout,
        Line::duration,
        "How long a client may accept no bytes of a response."
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
        "The maximum size of a body; 0: no limit."
    ),
    setting!(
        "client_body_buffer_size",
        core.client_body_buffer_size,
        Line::size,
        "The size up to which a body is kept in memory."
    ),
    setting!(
        "client_body_timeout",
        core.client_body_timeout,
        Line::duration,
        "How long a client may send no bytes of a body."
    ),
    Directive {
        name: "client_body_temp_path",
        help: "The directory for bodies that do not fit into memory.",
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
        "The maximum size of a subrequest's response in memory."
    ),
    setting!(
        "lingering_close",
        core.lingering_close,
        |d: &Line| d.choice(LINGERING),
        "Whether unread bytes of a client are received before its connection is closed."
    ),
    setting!(
        "lingering_time",
        core.lingering_time,
        Line::duration,
        "How long unread bytes are received before a connection is closed."
    ),
    setting!(
        "lingering_timeout",
        core.lingering_timeout,
        Line::duration,
        "How long a client may send no bytes in that time."
    ),
    Directive {
        name: "limit_rate",
        help: "The rate of a response, in bytes per second.",
        set: Set::Simple(set::limit_rate),
    },
    Directive {
        name: "limit_rate_after",
        help: "The length of a response before the rate is limited.",
        set: Set::Simple(set::limit_rate),
    },
    Directive {
        name: "resolver",
        help: "Name servers for the names of upstream servers.",
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
        "The timeout of resolving a name."
    ),
    Directive {
        name: "early_hints",
        help: "Passes on early hints (103) of upstream servers, if a value is neither empty nor `0`.",
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
