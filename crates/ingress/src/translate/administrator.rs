//! Keys of the controller's ConfigMap that make more than one directive: blocked clients, TLS
//! sessions, and the administrator's own snippets.

use std::collections::BTreeMap;
use std::path::Path;

use weir_conf::{Directive, read_fragment};

use super::global::Global;
use super::lines::{line, when};
use super::owners::key_owner;
use super::work::Work;
use crate::annotations::values;
use crate::report::Severity;

impl Work<'_> {
    /// Clients, user agents and referers that are refused on all hosts.
    pub(super) fn blocks(&mut self, data: &BTreeMap<String, String>, global: &mut Global) {
        if let Some(text) = data.get("block-cidrs").filter(|text| !text.trim().is_empty()) {
            match values::networks(text) {
                Some(list) => {
                    global.http.extend(list.iter().map(|network| line("deny", [network.as_str()])));
                }
                None => {
                    let why = "it must be a list of networks";
                    self.about_map("block-cidrs", Severity::Error, why);
                }
            }
        }
        for (key, from, to) in [
            ("block-user-agents", "$http_user_agent", "$block_agent"),
            ("block-referers", "$http_referer", "$block_referer"),
        ] {
            let Some(text) = data.get(key) else { continue };
            let mut rows = vec![line("default", ["0"])];
            for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
                // `~` and `~*` begin a pattern, as in `map`.
                let pattern = word.strip_prefix('~').map(|w| w.strip_prefix('*').unwrap_or(w));
                let wrong = pattern.and_then(|pattern| values::pattern(pattern).err());
                let long = word.len() > values::LONGEST || word.contains(char::is_control);
                if let Some(why) = wrong.or(long.then(|| "it cannot be compared".to_owned())) {
                    let why = format!("\"{word}\": {why}");
                    self.about_map(key, Severity::Error, &why);
                    continue;
                }
                // A backslash keeps a value such as `default` from being a special parameter of
                // `map`.
                let key = match pattern {
                    None => format!("\\{word}"),
                    Some(_) => word.to_owned(),
                };
                rows.push(line(&key, ["1"]));
            }
            global.http.push(line("map", [from, to]).with_block(rows));
            global.server.push(when_set(to));
        }
    }

    /// The resumption of TLS sessions.
    pub(super) fn sessions(
        &mut self,
        data: &BTreeMap<String, String>,
        flag: &dyn Fn(&str, bool) -> bool,
        http: &mut Vec<Directive>,
    ) {
        let size = data.get("ssl-session-cache-size").map_or("10m", |size| size.trim());
        match values::size(size) {
            _ if !flag("ssl-session-cache", true) => http.push(line("ssl_session_cache", ["off"])),
            Some(_) => {
                http.push(line("ssl_session_cache", [format!("shared:SSL:{size}").as_str()]))
            }
            None => self.about_map("ssl-session-cache-size", Severity::Error, "it must be a size"),
        }
        let Some(text) = data.get("ssl-session-ticket-key") else { return };
        match base64(text.trim()).filter(|key| matches!(key.len(), 48 | 80)) {
            Some(key) => {
                let file = self.file("ticket", key);
                http.push(line("ssl_session_ticket_key", [file.as_str()]));
            }
            None => {
                let why = "it must be 48 or 80 bytes in base64; tickets have keys of the server's";
                self.about_map("ssl-session-ticket-key", Severity::Error, why);
            }
        }
    }

    /// The administrator's snippets, which may have any directive of their context.
    pub(super) fn snippets(&mut self, data: &BTreeMap<String, String>, global: &mut Global) {
        for key in ["main-snippet", "http-snippet", "server-snippet", "stream-snippet"] {
            let Some(text) = data.get(key) else { continue };
            let mut made = self.fragment(key, text);
            // Each server marks its own copy.
            if key != "server-snippet" {
                global.owners.mark(&key_owner(key), &mut made);
            }
            match key {
                "main-snippet" => global.main.extend(made),
                "http-snippet" => global.http_snippet.extend(made),
                "server-snippet" => global.server.extend(made),
                _ => global.stream.extend(made),
            }
        }
    }

    /// The directives of one of the administrator's snippets. Empty if it cannot be read, which a
    /// finding reports.
    pub(super) fn fragment(&mut self, key: &str, text: &str) -> Vec<Directive> {
        let tree = read_fragment(Path::new(key), text.as_bytes());
        let Some(error) = &tree.broken else { return tree.main };
        self.about_map(key, Severity::Error, &tree.sources.explain(error));
        Vec::new()
    }
}

fn when_set(variable: &str) -> Directive {
    let refuse = vec![line("return", ["403"])];
    when(variable, "=", "1", refuse)
}

/// Decodes base64 with padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let value = serde_json::Value::String(text.to_owned());
    serde_json::from_value::<k8s_openapi::ByteString>(value).ok().map(|bytes| bytes.0)
}
