//! Names that nginx does not know, or no longer knows, with a hint for each.

/// Directives that nginx has removed.
const REMOVED: &[(&str, &str)] = &[
    ("ssl", "nginx removed it; use the \"ssl\" parameter of \"listen\""),
    ("limit_zone", "nginx removed it; use \"limit_conn_zone\""),
    ("satisfy_any", "nginx removed it; use \"satisfy any\""),
    ("optimize_server_names", "nginx removed it; use \"server_name_in_redirect\""),
    ("open_file_cache_retest", "nginx removed it; use \"open_file_cache_valid\""),
    ("spdy_headers_comp", "nginx removed it; SPDY became HTTP/2"),
    ("spdy_chunk_size", "nginx removed it; SPDY became HTTP/2"),
    ("connections", "nginx removed it; use \"worker_connections\""),
];

/// Prefixes of the directives of modules that are built separately.
const MODULES: &[(&str, &str)] = &[
    ("auth_jwt", "NGINX Plus"),
    ("zone_sync", "NGINX Plus"),
    ("keyval", "NGINX Plus"),
    ("hls", "NGINX Plus"),
    ("js_", "njs"),
    ("vhost_traffic_status", "vts"),
    ("upload_", "upload"),
    ("upload_progress", "upload progress"),
    ("track_uploads", "upload progress"),
    ("report_uploads", "upload progress"),
    ("modsecurity", "ModSecurity"),
    ("pagespeed", "PageSpeed"),
    ("passenger_", "Passenger"),
    ("rtmp", "rtmp"),
    ("opentracing", "opentracing"),
    ("nchan_", "nchan"),
    ("push_stream", "push stream"),
    ("redis", "redis"),
    ("srcache_", "srcache"),
    ("memc_", "memc"),
    ("postgres_", "postgres"),
    ("drizzle_", "drizzle"),
    ("rds_", "rds-json or rds-csv"),
    ("xss_", "xss"),
    ("set_unescape_uri", "set-misc"),
    ("set_escape_uri", "set-misc"),
    ("set_quote_", "set-misc"),
    ("set_encode_", "set-misc"),
    ("set_decode_", "set-misc"),
    ("set_md5", "set-misc"),
    ("set_sha1", "set-misc"),
    ("set_hmac_", "set-misc"),
    ("set_random", "set-misc"),
    ("set_secure_random_", "set-misc"),
    ("set_if_empty", "set-misc"),
    ("set_hashed_upstream", "set-misc"),
    ("set_local_today", "set-misc"),
    ("set_formatted_", "set-misc"),
    ("set_form_input", "form-input"),
    ("encrypted_session_", "encrypted-session"),
    ("replace_filter", "replace-filter"),
    ("iconv_filter", "iconv"),
    ("set_iconv", "iconv"),
    ("subs_filter", "substitutions"),
    ("auth_pam", "auth-pam"),
    ("auth_ldap", "auth-ldap"),
    ("auth_gss", "spnego"),
    ("auth_digest", "auth-digest"),
    ("shib_", "Shibboleth"),
    ("MainRule", "naxsi"),
    ("BasicRule", "naxsi"),
    ("CheckRule", "naxsi"),
    ("SecRulesEnabled", "naxsi"),
    ("SecRulesDisabled", "naxsi"),
    ("LearningMode", "naxsi"),
    ("DeniedUrl", "naxsi"),
    ("testcookie", "testcookie"),
    ("check_http_", "upstream check"),
    ("check_shm_size", "upstream check"),
    ("check_status", "upstream check"),
    ("check_keepalive_requests", "upstream check"),
    ("upsync", "upsync"),
    ("dyups_", "dyups"),
    ("concat", "concat"),
    ("vod_", "vod"),
    ("ajp_", "ajp"),
    ("statsd_", "statsd"),
    ("server_traffic_status", "sts"),
    ("ip2location", "ip2location"),
    ("datadog_", "Datadog"),
];

/// Alternatives to modules of nginx that weir lacks, by the beginning of the module's name.
const INSTEAD: &[(&str, &str)] =
    &[("ngx_http_perl_", "weir's scripts are in Lua: see docs/lua.md")];

/// The alternative to a module that weir lacks.
pub(crate) fn instead(module: &str) -> Option<&'static str> {
    let found = INSTEAD.iter().find(|(of, _)| module.starts_with(of));
    found.map(|(_, advice)| *advice)
}

/// A hint about a name that is in no table.
pub(crate) fn advice(name: &str) -> Option<String> {
    if let Some((_, advice)) = REMOVED.iter().find(|(removed, _)| *removed == name) {
        return Some((*advice).to_owned());
    }
    let fits = MODULES.iter().filter(|(prefix, _)| name.starts_with(prefix));
    let (_, module) = fits.max_by_key(|(prefix, _)| prefix.len())?;
    let scripts = if *module == "njs" { "; its scripts are in Lua: see docs/lua.md" } else { "" };
    Some(format!(
        "it belongs to {module}, which is not part of nginx; weir does not have it{scripts}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::known;

    #[test]
    fn names_are_not_known() {
        for (name, _) in REMOVED {
            assert_eq!(known(name.as_bytes()).count(), 0, "{name}");
        }
    }

    #[test]
    fn no_prefix_matches_a_known_directive() {
        for (prefix, module) in MODULES {
            let mut known = crate::known::all_known().map(|known| known.name);
            assert_eq!(known.find(|name| name.starts_with(prefix)), None, "{module}");
        }
    }

    #[test]
    fn names_and_prefixes() {
        assert!(advice("ssl").unwrap().contains("\"listen\""));
        assert!(advice("js_import").unwrap().contains("njs"));
        assert!(advice("js_import").unwrap().ends_with("see docs/lua.md"));
        assert!(advice("upload_pass").unwrap().contains("belongs to upload, "));
        for name in ["upload_progress", "upload_progress_json_output", "report_uploads"] {
            assert!(advice(name).unwrap().contains("belongs to upload progress, "), "{name}");
        }
        assert_eq!(advice("frobnicate"), None);
    }
}
