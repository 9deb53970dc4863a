//! The directives of `grpc`.

use bytes::Bytes;

use super::conf;
use crate::config::scope::{Directive, Set};
use crate::modules::grpc::CONF;
use crate::upstream::passing::upstream_directives;

/// All directives of the module. Those about buffering are left out.
pub const DIRECTIVES: &[Directive] = upstream_directives!(
    CONF, "grpc_": OWN;
    passing only(
        "bind",
        "socket_keepalive",
        "socket_rcvbuf",
        "socket_sndbuf",
        "connect_timeout",
        "send_timeout",
        "intercept_errors",
        "buffer_size",
        "read_timeout",
        "next_upstream",
        "next_upstream_tries",
        "next_upstream_timeout",
        "pass_header",
        "hide_header",
        "ignore_headers",
    ),
    tls
);

const OWN: &[Directive] = &[
    Directive {
        name: "grpc_pass",
        help: "The gRPC server, or group of servers, that requests are passed to.",
        set: Set::Simple(conf::set),
    },
    Directive {
        name: "grpc_set_header",
        help: "A header of requests to servers; with an empty value it is omitted.",
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
