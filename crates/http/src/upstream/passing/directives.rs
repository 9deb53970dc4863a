//! The directives of [`UpstreamConf`](super::UpstreamConf).

/// The directives that set a module's [`UpstreamConf`](super::UpstreamConf): `passing_directives!(proxy,
/// "proxy_")` for a module with settings that have a field `passing`.
macro_rules! passing_directives {
    ($key:ident, $prefix:literal) => {{
        use weir_conf::Directive as Line;

        use $crate::config::scope::Scope;
        use $crate::config::table::table;
        use $crate::upstream::passing::{self, UpstreamConf};

        fn settings<'s>(s: &'s mut Scope<'_, '_>) -> &'s mut UpstreamConf {
            &mut $key.change(&mut s.location).passing
        }
        table! { $prefix, settings:
            "connect_timeout": value(connect_timeout, Line::duration),
                "How long a connection may take.";
            "send_timeout": value(send_timeout, Line::duration),
                "How long the server may take no bytes.";
            "read_timeout": value(read_timeout, Line::duration),
                "How long the server may send no bytes.";
            "buffering": value(buffering, Line::flag),
                "Whether answers are read ahead of the client.";
            "request_buffering": value(request_buffering, Line::flag),
                "Whether bodies are read before they are passed.";
            "ignore_client_abort": value(ignore_client_abort, Line::flag),
                "Whether servers go on for clients that left, until a piece of the answer cannot be sent.";
            "intercept_errors": value(intercept_errors, Line::flag),
                "Whether error_page applies to answers.";
            "pass_request_headers": value(pass_request_headers, Line::flag),
                "Whether the client's headers are passed.";
            "pass_request_body": value(pass_request_body, Line::flag),
                "Whether the client's body is passed.";
            "force_ranges": value(force_ranges, Line::flag),
                "Whether ranges are cut out of answers that do not offer it.";
            "buffer_size": value(buffer_size, Line::size),
                "How long an answer's head may be, and its trailers.";
            "buffers": value(buffers, Line::buffers),
                "Memory for an answer that is read ahead: how many buffers, how large.";
            "busy_buffers_size": value(busy_buffers_size, |d| d.size().map(Some)),
                "Accepted: weir sends what it has.";
            "max_temp_file_size": value(max_temp_file_size, |d| d.size().map(Some)),
                "How much of an answer may wait in a file.";
            "temp_file_write_size": value(temp_file_write_size, |d| d.size().map(Some)),
                "Accepted: weir writes what it has read.";
            "temp_path": scoped(temp_path, |s, d| s.setup.read_temp_path(d, s.context)),
                "Where temporary files are, with levels of subdirectories.";
            "next_upstream": line(|s, d| {
                settings(s).retry.on = passing::failures(d);
                Ok(())
            }), "After which failures another server is asked.";
            "next_upstream_tries": value(retry.tries, passing::tries),
                "How many servers are asked at most.";
            "next_upstream_timeout": value(retry.timeout, Line::duration),
                "How long servers are asked one after another.";
            "bind": scoped(bind, |s, d| weir_upstream::config::Bind::read(&mut s.setup.reading(), d)),
                "The local address of connections to servers.";
            "socket_keepalive": value(socket_keepalive, Line::flag),
                "Whether the kernel probes idle connections to servers.";
            "socket_rcvbuf": value(socket_rcvbuf, |d| d.size().map(Some)),
                "The kernel's receive buffer for answers.";
            "socket_sndbuf": value(socket_sndbuf, |d| d.size().map(Some)),
                "The kernel's send buffer for requests.";
            "send_lowat": once(|s, d| {
                d.size()?;
                let text = concat!("\"", $prefix, "send_lowat\" is not supported, ignored");
                s.setup.warnings.push(d.warning(text));
                Ok(())
            }), "Accepted: Linux has no such limit.";
            "limit_rate": scoped(limit_rate, passing::limit_rate),
                "How fast answers are read ahead, in bytes a second.";
            "hide_header": list(hide, |_, d| Ok(passing::names(d))),
                "A header of answers that clients do not see.";
            "pass_header": list(pass, |_, d| Ok(passing::names(d))),
                "A header that would be hidden, and is not.";
            "ignore_headers": list(ignored, |_, d| Ok(passing::names(d))),
                "Headers of answers that are not acted upon.";
        }
    }};
}
pub(crate) use passing_directives;
