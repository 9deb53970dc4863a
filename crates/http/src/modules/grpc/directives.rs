//! The directives of `grpc`.

use bytes::Bytes;

use super::conf;
use crate::config::scope::{Directive, Set};
use crate::config::table::{selected, together};
use crate::modules::grpc::CONF;
use crate::upstream::passing::passing_directives;
use crate::upstream::tls::{tls_directive, tls_directives};

/// Of what all modules have which pass requests on, that which is not about holding back.
const PASSING: [Directive; 15] = selected(
    passing_directives!(CONF, "grpc_"),
    [
        "grpc_bind",
        "grpc_socket_keepalive",
        "grpc_socket_rcvbuf",
        "grpc_socket_sndbuf",
        "grpc_connect_timeout",
        "grpc_send_timeout",
        "grpc_intercept_errors",
        "grpc_buffer_size",
        "grpc_read_timeout",
        "grpc_next_upstream",
        "grpc_next_upstream_tries",
        "grpc_next_upstream_timeout",
        "grpc_pass_header",
        "grpc_hide_header",
        "grpc_ignore_headers",
    ],
);
const TLS: &[Directive] = tls_directives!(CONF, "grpc_");
const SHARED: [Directive; PASSING.len() + TLS.len()] = together(&PASSING, TLS);

/// All of them.
pub const DIRECTIVES: [Directive; OWN.len() + SHARED.len()] = together(OWN, &SHARED);

const OWN: &[Directive] = &[
    Directive {
        name: "grpc_pass",
        help: "The gRPC server, or group of servers, that requests are passed to.",
        set: Set::Simple(conf::set),
    },
    Directive {
        name: "grpc_set_header",
        help: "A header of requests to servers; an empty value leaves it out.",
        set: Set::Simple(|s, d| {
            let [name, value] = d.args.as_slice() else { return Ok(()) };
            let value = s.setup.line(d, value)?;
            let name = s.setup.line_name(d, name, &name.bytes);
            let first = s.first(d);
            let lines = &mut CONF.change(&mut s.location).set_headers;
            if first {
                lines.clear();
            }
            lines.extend(name.map(|name| (Bytes::from(name), value)));
            Ok(())
        }),
    },
];
