//! Modules by the names of the files that nginx loads them from.

use std::collections::BTreeSet;

/// Modules without directives, or whose directives belong to another module of weir.
const IN_OTHERS: &[&str] = &["ndk_http_module", "ngx_http_lua_upstream_module"];

/// How many directives of a missing module a message names.
const NAMED: usize = 4;

/// nginx's names of the modules that weir has.
pub fn names() -> impl Iterator<Item = &'static str> {
    let of_sessions = weir_stream::MODULES.iter().chain(weir_mail::MODULES).copied();
    weir_http::modules::names().chain(of_sessions)
}

/// Whether the module of the file `ngx_http_x_module.so`, given without the extension, is part of
/// weir.
pub fn is_there(name: &str) -> bool {
    let bare = name.strip_prefix("ngx_").unwrap_or(name);
    let bare = bare.strip_suffix("_module").unwrap_or(bare);
    IN_OTHERS.contains(&name) || names().any(|there| there == bare)
}

/// Directives of a module that weir lacks, for a message. Empty for an unknown module.
pub fn directives(name: &str) -> String {
    let of = weir_conf::all_known().filter(|known| known.module == name);
    let names: BTreeSet<&str> = of.map(|known| known.name).collect();
    let more = if names.len() > NAMED { ", ..." } else { "" };
    let first: Vec<&str> = names.into_iter().take(NAMED).collect();
    first.join(", ") + more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_in_is_there() {
        for name in [
            "ngx_http_lua_module",
            "ngx_http_lua_upstream_module",
            "ngx_http_brotli_filter_module",
            "ngx_http_geoip_module",
            "ndk_http_module",
        ] {
            assert!(is_there(name), "{name}");
        }
        for name in ["ngx_http_xslt_filter_module", "ngx_http_perl_module", "x", ""] {
            assert!(!is_there(name), "{name}");
        }
    }

    #[test]
    fn what_will_be_refused_is_named() {
        assert_eq!(
            directives("ngx_http_perl_module"),
            "perl, perl_modules, perl_require, perl_set"
        );
        assert!(directives("ngx_http_xslt_filter_module").ends_with(", ..."));
        assert_eq!(directives("x"), "");
    }
}
