//! The output of `-v`, `-V` and `-h`.

use std::path::Path;

use crate::paths::Paths;

/// The release of weir.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// nginx's version, for tools that parse `nginx -v`.
pub use weir_values::NGINX_VERSION as NGINX;

/// Modules that nginx builds by default, by the names of their `--without` options.
const DEFAULT: &[&str] = &[
    "http_charset_module",
    "http_gzip_module",
    "http_ssi_module",
    "http_userid_module",
    "http_access_module",
    "http_auth_basic_module",
    "http_mirror_module",
    "http_autoindex_module",
    "http_geo_module",
    "http_map_module",
    "http_split_clients_module",
    "http_referer_module",
    "http_rewrite_module",
    "http_proxy_module",
    "http_fastcgi_module",
    "http_uwsgi_module",
    "http_scgi_module",
    "http_grpc_module",
    "http_memcached_module",
    "http_limit_conn_module",
    "http_limit_req_module",
    "http_empty_gif_module",
    "http_browser_module",
    "http_tunnel_module",
    "http_upstream_hash_module",
    "http_upstream_ip_hash_module",
    "http_upstream_least_conn_module",
    "http_upstream_least_time_module",
    "http_upstream_random_module",
    "http_upstream_keepalive_module",
    "http_upstream_zone_module",
    "http_upstream_sticky_module",
    "http-cache",
];

/// Modules that nginx builds only on request, by the names of their `--with` options.
const OPTIONAL: &[&str] = &[
    "http_ssl_module",
    "http_v2_module",
    "http_v3_module",
    "http_realip_module",
    "http_addition_module",
    "http_image_filter_module",
    "http_geoip_module",
    "http_sub_module",
    "http_dav_module",
    "http_flv_module",
    "http_mp4_module",
    "http_gunzip_module",
    "http_gzip_static_module",
    "http_auth_request_module",
    "http_random_index_module",
    "http_secure_link_module",
    "http_degradation_module",
    "http_slice_module",
    "http_stub_status_module",
    "stream",
    "stream_ssl_module",
    "stream_realip_module",
    "stream_geoip_module",
    "stream_ssl_preread_module",
    "mail",
    "mail_ssl_module",
];

/// Modules that are not part of nginx, with the names of their sources (docs/modules.md).
const ADDED: &[(&str, &str)] = &[
    ("http_lua", "lua-nginx-module"),
    ("stream_lua", "stream-lua-nginx-module"),
    ("http_headers_more_filter", "headers-more-nginx-module"),
    ("http_echo", "echo-nginx-module"),
    ("http_geoip2", "ngx_http_geoip2_module"),
    ("http_cache_purge", "ngx_cache_purge"),
    ("http_fancyindex", "ngx-fancyindex"),
    ("http_dav_ext", "nginx-dav-ext-module"),
    ("http_brotli_filter", "ngx_brotli"),
    ("http_zstd_filter", "zstd-nginx-module"),
    ("http_acme", "nginx-acme"),
    ("otel", "nginx-otel"),
];

/// The lines of `-v`: weir's version, and nginx's for tools.
pub fn version() -> String {
    format!("weir version: weir/{VERSION}\nnginx version: nginx/{NGINX} (weir {VERSION})\n")
}

/// The text after `configure arguments:`: paths of files, and the modules of nginx that weir has
/// and lacks.
pub fn arguments(built: &[&str], places: &str) -> String {
    let has = |word: &&&str| built.contains(&bare(word).as_str());
    let with = OPTIONAL.iter().filter(has).map(|word| format!(" --with-{word}"));
    let without = DEFAULT.iter().filter(|word| !has(word)).map(|word| format!(" --without-{word}"));
    let added = ADDED.iter().filter(|(module, _)| built.contains(module));
    let added = added.map(|(_, sources)| format!(" --add-module={sources}"));
    let words: String = with.chain(without).chain(added).collect();
    format!("{places} --with-threads{words}")
}

/// The lines of `-V` about how the program was built and its paths.
pub fn configure(built: &[&str], places: &str) -> String {
    let arguments = arguments(built, places);
    // The words of nginx with AWS-LC, which claims compatibility with this version of OpenSSL.
    let tls = match built.contains(&"http_ssl") {
        true => {
            "built with OpenSSL 1.1.1 (compatible; AWS-LC, with rustls 0.23)\nTLS SNI support enabled\n"
        }
        false => "",
    };
    format!("built by rustc, edition 2024\n{tls}configure arguments:{arguments}\n")
}

/// The line of `-V` about the program's other tools.
pub fn built_tools(tools: &[(&str, &str)]) -> String {
    let names: Vec<&str> = tools.iter().map(|(name, _)| *name).collect();
    match names.is_empty() {
        true => "tools: none\n".to_owned(),
        false => format!("tools: {}\n", names.join(" ")),
    }
}

/// weir's name for a module: `http_gzip_module` is `http_gzip`.
fn bare(word: &str) -> String {
    word.strip_suffix("_module").unwrap_or(word).replace('-', "_")
}

/// An option of the server's command line, as in nginx.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Its letters, which are synonyms.
    pub letters: &'static [char],
    /// The name of its value, if it takes one.
    pub value: Option<&'static str>,
    /// The possible values, if these are words.
    pub values: &'static [&'static str],
    /// What the option does.
    pub about: &'static str,
}

/// All options of the server's command line.
pub const FLAGS: &[Flag] = &[
    flag(&['?', 'h'], None, "this help"),
    flag(&['v'], None, "show version and exit"),
    flag(&['V'], None, "show version and configure options then exit"),
    flag(&['t'], None, "test configuration and exit"),
    flag(&['T'], None, "test configuration, dump it and exit"),
    flag(&['q'], None, "suppress non-error messages during configuration testing"),
    Flag {
        values: &["stop", "quit", "reopen", "reload"],
        ..flag(
            &['s'],
            Some("signal"),
            "send signal to a master process: stop, quit, reopen, reload",
        )
    },
    flag(&['p'], Some("prefix"), "set prefix path"),
    flag(&['e'], Some("filename"), "set error log file"),
    flag(&['c'], Some("filename"), "set configuration file"),
    flag(&['g'], Some("directives"), "set global directives out of configuration file"),
];

const fn flag(letters: &'static [char], value: Option<&'static str>, about: &'static str) -> Flag {
    Flag { letters, value, values: &[], about }
}

/// The text of `-h`.
pub fn help(paths: &Paths, tools: &[(&str, &str)]) -> String {
    let mut text = String::from(
        "Usage: weir [-?hvVtTq] [-s signal] [-p prefix]
            [-e filename] [-c filename] [-g directives]
       weir --demo   serves a live panel of its own, without a configuration
       weir TOOL     ...

Options:
",
    );
    for Flag { letters, value, about, .. } in FLAGS {
        let letters: Vec<String> = letters.iter().map(|letter| format!("-{letter}")).collect();
        let name = [letters.join(",").as_str(), value.unwrap_or_default()].join(" ");
        let default = match letters[0].as_str() {
            "-p" => format!(" (default: {})", paths.prefix.display()),
            "-e" => format!(" (default: {})", shown(paths.error_log.as_deref(), "stderr")),
            "-c" => format!(" (default: {})", shown(paths.conf.as_deref(), "built in")),
            _ => String::new(),
        };
        text += &format!("  {name:<14}: {about}{default}\n");
    }
    text += "\n";
    text += match tools.is_empty() {
        true => "This weir was built without its tools.\n",
        false => "Tools, each with --help of its own:\n",
    };
    for (name, about) in tools {
        text += &format!("  weir {name:<12}: {about}\n");
    }
    text
}

fn shown(path: Option<&Path>, or: &str) -> String {
    path.map_or_else(|| or.to_owned(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_those_that_are_read() {
        let takes = |arg: &str| crate::cli::parse(&[arg.into(), "stop".into()]).is_ok();
        let takes_alone = |arg: &str| crate::cli::parse(&[arg.into()]).is_ok();
        let told = |letter: char| FLAGS.iter().find(|flag| flag.letters.contains(&letter));
        for letter in (33..127).map(char::from) {
            let arg = format!("-{letter}");
            match told(letter) {
                Some(flag) if flag.value.is_some() => assert!(takes(&arg) && !takes_alone(&arg)),
                Some(_) => assert!(takes_alone(&arg), "{arg}"),
                None => assert!(!takes(&arg) && !takes_alone(&arg), "{arg}"),
            }
        }
    }

    #[test]
    fn tools_find_an_nginx_version() {
        let line = format!("nginx version: nginx/{NGINX} ");
        assert!(version().contains(&line));
        // Test::Nginx reads the version after the last slash of the line.
        let last =
            version().lines().last().and_then(|line| line.rsplit('/').next().map(String::from));
        assert!(last.is_some_and(|text| text.starts_with(NGINX)));
    }

    #[test]
    fn tools_find_an_openssl_version() {
        // certbot reads this version, and keeps session tickets on for versions before 1.0.2l.
        let text = configure(&["http_ssl"], "");
        let version =
            text.split_once("\nbuilt with OpenSSL ").and_then(|(_, rest)| rest.split_once(' '));
        assert!(version.is_some_and(|(version, rest)| version == "1.1.1" && rest.starts_with('(')));
        assert!(!configure(&[], "").contains("OpenSSL"));
    }

    #[test]
    fn modules_are_named_as_configure_names_them() {
        let text = configure(&["http_stub_status", "http_proxy", "http_cache"], " --prefix=/x");
        assert!(text.contains("\nconfigure arguments: --prefix=/x --with-threads "));
        assert!(text.contains(" --with-http_stub_status_module"));
        assert!(text.contains(" --without-http_gzip_module"));
        assert!(!text.contains("http_ssl_module") && !text.contains("lua"));
        assert!(configure(&["http_lua"], "").contains(" --add-module=lua-nginx-module"));
        assert!(configure(&["stream_lua"], "").contains(" --add-module=stream-lua-nginx-module"));
        assert!(!text.contains("http_proxy_module") && !text.contains("http-cache"));
        assert!(configure(&[], "").contains(" --without-http-cache"));
    }
}
