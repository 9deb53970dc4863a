//! The directives of TLS to servers, for each module that passes requests on.

/// The directives that set a module's `passing.tls`, as `passing_directives!` does for the rest.
macro_rules! tls_directives {
    ($module:ident, $prefix:literal) => {{
        use std::sync::Arc;

        use weir_conf::Directive as Line;

        use $crate::modules::ssl::{commands, kept, read};
        use $crate::upstream::tls;
        use $crate::config::scope::Scope;
        use $crate::config::table::table;

        fn settings<'s>(s: &'s mut Scope<'_, '_>) -> &'s mut tls::Settings {
            Arc::make_mut(&mut Scope::change(&mut s.location.$module).passing.tls)
        }
        table! { $prefix, settings:
            "ssl_session_reuse": value(reuse, Line::flag), "Whether sessions are resumed.";
            "ssl_protocols": line(|s, d| {
                let before = (!s.first(d)).then_some(settings(s).versions);
                settings(s).versions = read::versions(s, d, before)?;
                Ok(())
            }), "Versions of TLS: TLSv1.2 and TLSv1.3, older ones do not exist here.";
            "ssl_ciphers": scoped(ciphers, |s, d| read::ciphers(s.setup, d)),
                "Ciphers of TLS 1.2, as OpenSSL's cipher list.";
            "ssl_name": scoped(name, |s, d| {
                d.args.first().map(|word| s.setup.template(d, word)).transpose()
            }), "The name that the server's certificate is checked for, and that is sent to it.";
            "ssl_server_name": value(send_name, Line::flag), "Whether the name is sent (SNI).";
            "ssl_verify": value(verify, Line::flag), "Whether the certificate is checked.";
            "ssl_verify_depth": value(depth, Line::number),
                "How many authorities may stand between the certificate and the root.";
            "ssl_trusted_certificate": value(trusted, read::file),
                "Authorities that vouch for servers.";
            "ssl_crl": value(crl, read::file), "Lists of revoked certificates.";
            "ssl_certificate": value(certificate, read::file),
                "The certificate that servers are shown.";
            "ssl_certificate_key": value(key, read::file), "The key of that certificate.";
            "ssl_certificate_cache": value(cache, kept::read),
                "How many certificates and keys with variables in their names a loop keeps, and how long.";
            "ssl_conf_command": list(commands, |_, d| Ok(commands::command(d))),
                "Options, certificates, ciphers, curves and versions by OpenSSL's names.";
            "ssl_password_file": scoped(passwords, |s, d| read::passwords(s.setup, d)),
                "Passwords of the key, one a line.";
        }
    }};
}
pub(crate) use tls_directives;
