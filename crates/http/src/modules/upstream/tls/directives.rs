//! The directives of TLS to servers, for each module that passes requests on.

/// The directives that set a module's `passing.tls`, as `passing_directives!` does for the rest.
macro_rules! tls_directives {
    ($module:ident, $prefix:literal) => {{
        use std::sync::Arc;

        use weir_conf::Directive as Line;

        use $crate::modules::ssl::read;
        use $crate::modules::upstream::tls;
        use $crate::scope::{Directive, Scope, Set};

        macro_rules! one {
            ($name:literal, $help:literal, $set:expr) => {
                Directive {
                    name: concat!($prefix, $name),
                    help: $help,
                    set: Set::Simple(|s, d| {
                        s.once(d)?;
                        let conf = Scope::change(&mut s.location.$module);
                        let set: fn(
                            &mut tls::Settings,
                            &mut $crate::configure::Setup<'_>,
                            &Line,
                        ) -> Result<(), weir_conf::Error> = $set;
                        set(Arc::make_mut(&mut conf.passing.tls), s.setup, d)
                    }),
                }
            };
        }
        macro_rules! value {
            ($name:literal, $field:ident, $read:expr, $help:literal) => {
                one!($name, $help, |tls, _, d| {
                    tls.$field = $read(d)?;
                    Ok(())
                })
            };
        }
        &[
            value!("ssl_session_reuse", reuse, Line::flag, "Whether sessions are resumed."),
            Directive {
                name: concat!($prefix, "ssl_protocols"),
                help: "Versions of TLS: TLSv1.2 and TLSv1.3, older ones do not exist here.",
                set: Set::Simple(|s, d| {
                    let first = s.first(d);
                    let before = s.location.$module.passing.tls.versions;
                    let versions = read::versions(s, d, (!first).then_some(before))?;
                    let conf = Scope::change(&mut s.location.$module);
                    Arc::make_mut(&mut conf.passing.tls).versions = versions;
                    Ok(())
                }),
            },
            one!("ssl_ciphers", "Ciphers of TLS 1.2, as OpenSSL's cipher list.", |tls, setup, d| {
                tls.ciphers = read::ciphers(setup, d)?;
                Ok(())
            }),
            one!(
                "ssl_name",
                "The name that the server's certificate is checked for, and that is sent to it.",
                |tls, setup, d| {
                    let Some(word) = d.args.first() else { return Ok(()) };
                    let name = $crate::template::Template::new(&mut setup.variables, &word.bytes);
                    tls.name = Some(name.map_err(|e| d.error_at(word, e))?);
                    Ok(())
                }
            ),
            value!("ssl_server_name", send_name, Line::flag, "Whether the name is sent (SNI)."),
            value!("ssl_verify", verify, Line::flag, "Whether the certificate is checked."),
            value!(
                "ssl_verify_depth",
                depth,
                Line::number,
                "How many authorities may stand between the certificate and the root."
            ),
            value!(
                "ssl_trusted_certificate",
                trusted,
                read::file,
                "Authorities that vouch for servers."
            ),
            value!("ssl_crl", crl, read::file, "Lists of revoked certificates."),
            value!(
                "ssl_certificate",
                certificate,
                read::file,
                "The certificate that servers are shown."
            ),
            value!("ssl_certificate_key", key, read::file, "The key of that certificate."),
            value!(
                "ssl_certificate_cache",
                cache,
                $crate::modules::ssl::kept::read,
                "How many certificates and keys with variables in their names a loop keeps, and how long."
            ),
            Directive {
                name: concat!($prefix, "ssl_conf_command"),
                help: "Options, certificates, ciphers, curves and versions by OpenSSL's names.",
                set: Set::Simple(|s, d| {
                    let first = s.first(d);
                    let conf = Scope::change(&mut s.location.$module);
                    let commands = &mut Arc::make_mut(&mut conf.passing.tls).commands;
                    if first {
                        commands.clear();
                    }
                    if let (Some(name), Some(value)) = (read::named(d), d.arg(1)) {
                        commands.push((name, value.bytes.clone()));
                    }
                    Ok(())
                }),
            },
            one!("ssl_password_file", "Passwords of the key, one a line.", |tls, setup, d| {
                tls.passwords = read::passwords(setup, d)?;
                Ok(())
            }),
        ]
    }};
}
pub(crate) use tls_directives;
