//! Keys of the controller's ConfigMap that adjust other directives.

use std::collections::BTreeMap;

use weir_conf::Directive;

use super::global::Global;
use super::lines::line;
use super::work::Work;
use crate::annotations::values;
use crate::report::Severity;
use crate::settings::Settings;

/// The parameters of `access_log` after the format. Unknown ones are left out.
pub(super) fn access_log_params(text: &str) -> impl Iterator<Item = &str> {
    let is_good = |word: &&str| match word.split_once('=') {
        None => *word == "gzip",
        Some(("buffer" | "flush" | "gzip", value)) => values::of(value, ""),
        Some(_) => false,
    };
    text.split_whitespace().filter(is_good)
}

/// The variable by which limits count clients.
pub(super) fn limit_key(settings: &Settings) -> &str {
    let said = settings.defaults.get("limit-conn-zone-variable").map(|name| name.trim());
    let is_variable = |name: &&str| {
        name.strip_prefix('$').is_some_and(|name| !name.is_empty() && values::of(name, "_"))
    };
    said.filter(is_variable).unwrap_or("$binary_remote_addr")
}

/// The status of redirects to HTTPS and to another name.
pub(super) fn redirect_code(settings: &Settings) -> &str {
    let said = settings.defaults.get("http-redirect-code").map(|code| code.trim());
    said.filter(|code| ["301", "302", "307", "308"].contains(code)).unwrap_or("308")
}

/// The directives of TCP and UDP sessions: timeouts, retries, and datagrams of an answer.
pub(super) fn session_directives(settings: &Settings, udp: bool) -> Vec<Directive> {
    let said = |key: &str, other: &str| -> String {
        let word = settings.defaults.get(key).map(|word| word.trim());
        let is_good = |word: &&str| {
            values::of(word, "") && word.starts_with(|first: char| first.is_ascii_digit())
        };
        word.filter(is_good).unwrap_or(other).to_owned()
    };
    let of = |key: &str, other: &str, name: &str| line(name, [said(key, other).as_str()]);
    let mut list = vec![of("proxy-stream-timeout", "600s", "proxy_timeout")];
    let again = settings.defaults.get("proxy-stream-next-upstream").map(|word| word.trim());
    match again {
        Some("false") => list.push(line("proxy_next_upstream", ["off"])),
        _ => list.extend([
            of("proxy-stream-next-upstream-timeout", "600s", "proxy_next_upstream_timeout"),
            of("proxy-stream-next-upstream-tries", "3", "proxy_next_upstream_tries"),
        ]),
    }
    if udp {
        // Otherwise each query to a name server would keep its session until the timeout.
        list.push(line("proxy_responses", [said("proxy-stream-responses", "1").as_str()]));
    }
    list
}

/// Removes IPv6 listen addresses if the ConfigMap says so (`disable-ipv6`).
pub(super) fn without_ipv6(settings: &mut Settings) {
    if settings.defaults.get("disable-ipv6").is_some_and(|word| word.trim() == "true") {
        settings.http.retain(|address| !address.starts_with('['));
        settings.https.retain(|address| !address.starts_with('['));
    }
}

impl Work<'_> {
    /// Requests that the access log leaves out.
    pub(super) fn skipped(&mut self, data: &BTreeMap<String, String>, global: &mut Global) {
        let Some(text) = data.get("skip-access-log-urls") else { return };
        let Some(log) = global.http.iter_mut().find(|d| d.name.is("access_log")) else { return };
        if log.args.len() < 2 {
            return;
        }
        let mut words: Vec<String> =
            log.args.iter().map(|word| word.lossy().into_owned()).collect();
        words.push("if=$loggable".to_owned());
        *log = line("access_log", words.iter().map(String::as_str));
        let (mut rows, mut wrong) = (vec![line("default", ["1"])], Vec::new());
        for place in text.split(',').map(str::trim).filter(|place| !place.is_empty()) {
            let pattern = place.strip_prefix("~*").or(place.strip_prefix('~'));
            // A backslash makes a word of `map` a value.
            let is_word = matches!(place, "default" | "hostnames" | "include" | "volatile");
            let value = if is_word { format!("\\{place}") } else { place.to_owned() };
            match pattern.map_or(Ok(()), values::pattern) {
                Ok(()) => rows.push(line(&value, ["0"])),
                Err(why) => wrong.push(format!("{place}: {why}; it is logged")),
            }
        }
        global.http.push(line("map", ["$request_uri", "$loggable"]).with_block(rows));
        for why in wrong {
            self.about_map("skip-access-log-urls", Severity::Warning, &why);
        }
    }

    /// Settings of requests to upstreams and of their answers.
    pub(super) fn parts_of_requests(
        &mut self,
        data: &BTreeMap<String, String>,
        flag: &dyn Fn(&str, bool) -> bool,
        global: &mut Global,
    ) {
        if !flag("generate-request-id", true) {
            let rows = vec![line("default", ["$http_x_request_id"])];
            global.maps.insert("$req_id", line("map", ["", "$req_id"]).with_block(rows));
        }
        if flag("proxy-add-original-uri-header", false) {
            let header = ("X-Original-Uri".to_owned(), "$request_uri".to_owned());
            global.headers.push(header);
        }
        if flag("allow-backend-server-header", false) {
            global.http.push(line("proxy_pass_header", ["Server"]));
        }
        if let Some(text) = data.get("location-snippet") {
            global.location = self.fragment("location-snippet", text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_log_are_those_that_it_has() {
        let words: Vec<_> =
            access_log_params("buffer=16k  flush=1m gzip gzip=3 if=$x buffer=a;b gzip;").collect();
        assert_eq!(words, ["buffer=16k", "flush=1m", "gzip", "gzip=3"]);
    }
}
