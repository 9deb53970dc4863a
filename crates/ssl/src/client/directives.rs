//! The directives of TLS to servers, for each module that passes requests or sessions on.

/// The rows of these directives behind a prefix. Each is `$row!($what, NAME, HELP, SET)`, where
/// `SET` is a [`SetDirective`](crate::SetDirective) of [`Settings`](crate::client::Settings).
#[macro_export]
macro_rules! client_directives {
    ($prefix:literal, $row:ident, $what:tt) => {
        &[
            $row!(
                $what,
                concat!($prefix, "ssl_session_reuse"),
                "Whether sessions are resumed.",
                |c, d, _| d.set(&mut c.reuse, weir_conf::Directive::flag)
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_protocols"),
                "Versions of TLS: TLSv1.2 and TLSv1.3, older ones do not exist here.",
                |c, d, r| c.add_versions(d, r.warnings)
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_ciphers"),
                "Ciphers of TLS 1.2, as OpenSSL's cipher list.",
                |c, d, r| d.set(&mut c.ciphers, |line| Ok($crate::ciphers(r.warnings, line)))
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_name"),
                "The name that the server's certificate is checked for, and that is sent to it.",
                |c, d, r| d.set(&mut c.name, |line| {
                    line.args.first().map(|word| r.reading().template(line, word)).transpose()
                })
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_server_name"),
                "Whether the name is sent (SNI).",
                |c, d, _| d.set(&mut c.send_name, weir_conf::Directive::flag)
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_verify"),
                "Whether the certificate is checked.",
                |c, d, _| d.set(&mut c.verify, weir_conf::Directive::flag)
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_verify_names"),
                "Names of which the certificate must have one instead of the server's: of hosts, and URIs.",
                |c, d, _| d.set(&mut c.names, |line| Ok($crate::client::names(line)))
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_verify_depth"),
                "How many authorities may stand between the certificate and the root.",
                |c, d, _| d.set(&mut c.depth, weir_conf::Directive::number)
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_trusted_certificate"),
                "Authorities that vouch for servers.",
                |c, d, _| d.set(&mut c.trusted, $crate::file)
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_crl"),
                "Lists of revoked certificates.",
                |c, d, _| d.set(&mut c.crl, $crate::file)
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_certificate"),
                "The certificate that servers are shown.",
                |c, d, r| d.set(&mut c.certificate, |line| $crate::file_for_each(r, line))
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_certificate_key"),
                "The key of that certificate.",
                |c, d, r| d.set(&mut c.key, |line| $crate::file_for_each(r, line))
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_certificate_cache"),
                "How many certificates and keys with variables in their names a loop keeps, and how long.",
                |c, d, _| d.set(&mut c.cache, $crate::certificate_cache::read)
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_conf_command"),
                "Options, certificates, ciphers, curves and versions by OpenSSL's names.",
                |c, d, _| d.add(&mut c.commands, $crate::commands::command(d.line))
            ),
            $row!(
                $what,
                concat!($prefix, "ssl_password_file"),
                "Passwords of the key, one a line.",
                |c, d, r| d.set(&mut c.passwords, |line| $crate::passwords(r.files, line))
            ),
        ]
    };
}
