//! Logs, by keys of the controller's ConfigMap: targets and formats.

use std::collections::BTreeMap;

use super::global::Global;
use super::keys;
use super::lines::line;
use super::owners::key_owner;
use super::work::Work;
use crate::annotations::values;
use crate::report::Severity;

/// The log format of ingress-nginx, which log collectors know.
pub(super) const FORMAT: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\" $request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time $upstream_status $req_id";

const STREAM_FORMAT: &str =
    "[$remote_addr] [$time_local] $protocol $status $bytes_sent $bytes_received $session_time";

impl Work<'_> {
    /// The directives of all logs.
    pub(super) fn logs(
        &mut self,
        data: &BTreeMap<String, String>,
        flag: &dyn Fn(&str, bool) -> bool,
        global: &mut Global,
    ) {
        let syslog = self.syslog(data, flag);
        let level = data.get("error-log-level").filter(|level| values::of(level, ""));
        if level.is_some() || syslog.is_some() {
            let to = syslog.as_deref().unwrap_or("stderr");
            let level = level.map_or("notice", String::as_str);
            let mut made = [line("error_log", [to, level])];
            let key = if syslog.is_some() { "syslog-host" } else { "error-log-level" };
            global.owners.mark(&key_owner(key), &mut made);
            global.main.extend(made);
        }
        // The key that names the target, and the target.
        let place = |own: &'static str| {
            let named = [own, "access-log-path"].into_iter().filter_map(|key| {
                let path = data.get(key)?.trim();
                (!path.is_empty() && !path.contains(char::is_control)).then_some((key, path))
            });
            syslog.as_deref().map(|to| ("syslog-host", to)).into_iter().chain(named).next()
        };
        let escape =
            match (flag("log-format-escape-json", false), flag("log-format-escape-none", false)) {
                (true, _) => "escape=json",
                (_, true) => "escape=none",
                _ => "escape=default",
            };
        let all_off = flag("disable-access-log", false);
        let own = ("", self.settings.access_log.as_str());
        let (key, to) = place("http-access-log-path").unwrap_or(own);
        if all_off || flag("disable-http-access-log", false) || to == "off" {
            global.http.push(line("access_log", ["off"]));
        } else {
            let format = data.get("log-format-upstream").filter(|format| {
                let made = [line("log_format", ["upstreaminfo", escape, format])];
                let fits = weir_conf::print_at(&made, 1).is_ok();
                if !fits {
                    let why = "it is too long; the usual format stands in";
                    self.about_map("log-format-upstream", Severity::Error, why);
                }
                fits
            });
            let format = format.map_or(FORMAT, String::as_str);
            let mut made = [line("log_format", ["upstreaminfo", escape, format])];
            global.owners.mark(&key_owner("log-format-upstream"), &mut made);
            global.http.extend(made);
            let mut words = vec![to, "upstreaminfo"];
            let more = data.get("access-log-params").filter(|_| syslog.is_none());
            words.extend(more.into_iter().flat_map(|text| keys::access_log_params(text)));
            let mut made = [line("access_log", words)];
            if !key.is_empty() {
                global.owners.mark(&key_owner(key), &mut made);
            }
            global.http.extend(made);
        }
        if let Some((key, to)) = place("stream-access-log-path").filter(|(_, to)| *to != "off")
            && !all_off
            && !flag("disable-stream-access-log", false)
        {
            let format = data.get("log-format-stream").map_or(STREAM_FORMAT, String::as_str);
            let mut format = [line("log_format", ["log_stream", escape, format])];
            global.owners.mark(&key_owner("log-format-stream"), &mut format);
            let mut log = [line("access_log", [to, "log_stream"])];
            global.owners.mark(&key_owner(key), &mut log);
            global.stream.extend(format.into_iter().chain(log));
        }
    }

    /// The target for logs that are sent to a syslog server.
    fn syslog(
        &mut self,
        data: &BTreeMap<String, String>,
        flag: &dyn Fn(&str, bool) -> bool,
    ) -> Option<String> {
        if !flag("enable-syslog", false) {
            return None;
        }
        let text = |key: &str| data.get(key).map(|text| text.trim());
        let host =
            text("syslog-host").filter(|host| !host.is_empty() && values::of(host, "-._:[]"));
        let port = text("syslog-port").unwrap_or("514").parse::<u16>().ok().filter(|p| *p > 0);
        let (Some(host), Some(port)) = (host, port) else {
            let why = "it must be the host of a server, and syslog-port a port; logs stay here";
            self.about_map("syslog-host", Severity::Error, why);
            return None;
        };
        Some(format!("syslog:server={host}:{port}"))
    }
}
