//! weir's metrics under ingress-nginx's names, for dashboards, alerts and rollouts that use those.
//!
//! - In: weir's page in the text format of Prometheus, which counts by `status_zone`, line by line.
//! - Out: the same by Ingress. Metrics that weir does not count by Ingress are left out.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The prefix of ingress-nginx's metrics.
pub(super) const OF_NGINX: &str = "nginx_ingress_controller_";

/// The buckets of ingress-nginx's histograms, in seconds. weir's next bound stands for each.
const BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Metrics of the whole server: weir's name, ingress-nginx's name, labels, type and help.
const SERVER_METRICS: &[(&str, &str, &str, &str, &str)] = &[
    (
        "weir_active_connections",
        "nginx_process_connections",
        "state=\"active\"",
        "gauge",
        "Connections of clients",
    ),
    ("weir_reading_connections", "nginx_process_connections", "state=\"reading\"", "gauge", ""),
    ("weir_writing_connections", "nginx_process_connections", "state=\"writing\"", "gauge", ""),
    ("weir_waiting_connections", "nginx_process_connections", "state=\"waiting\"", "gauge", ""),
    (
        "weir_accepted_connections_total",
        "nginx_process_connections_total",
        "state=\"accepted\"",
        "counter",
        "Connections since the start",
    ),
    (
        "weir_handled_connections_total",
        "nginx_process_connections_total",
        "state=\"handled\"",
        "counter",
        "",
    ),
    ("weir_requests_total", "nginx_process_requests_total", "", "counter", "Requests of clients"),
    (
        "weir_received_bytes_total",
        "nginx_process_read_bytes_total",
        "",
        "counter",
        "Bytes from clients",
    ),
    ("weir_sent_bytes_total", "nginx_process_write_bytes_total", "", "counter", "Bytes to clients"),
    (
        "weir_busy_seconds_total",
        "nginx_process_cpu_seconds_total",
        "",
        "counter",
        "Seconds that loops of weir have worked",
    ),
    ("weir_workers", "nginx_process_num_procs", "", "gauge", "Worker processes"),
    (
        "weir_start_time_seconds",
        "nginx_process_oldest_start_time_seconds",
        "",
        "gauge",
        "When weir began",
    ),
];

/// An Ingress: its namespace, its name, and the servers of a canary that answered.
type Reached = (String, String, String);

/// The counts of one [`Reached`].
#[derive(Debug)]
struct Counted {
    /// By class of the status.
    requests: Vec<(String, u64)>,
    received: u64,
    sent: u64,
    buckets: Vec<(String, String)>,
    sum: String,
    count: String,
}

impl Default for Counted {
    fn default() -> Counted {
        let zero = || "0".to_owned();
        Counted {
            requests: Vec::new(),
            received: 0,
            sent: 0,
            buckets: Vec::new(),
            sum: zero(),
            count: zero(),
        }
    }
}

/// The metrics read from weir's page.
#[derive(Debug, Default)]
pub(super) struct NginxMetrics {
    reached: BTreeMap<Reached, Counted>,
    server_metrics: BTreeMap<usize, String>,
    memory: u64,
    certificates: BTreeMap<String, String>,
}

impl NginxMetrics {
    /// Reads a line of weir's page.
    pub(super) fn read_line(&mut self, line: &str) {
        let Some((name, labels, value)) = sample(line) else { return };
        let Some(about) = name.strip_prefix("weir_zone_") else {
            self.read_server_metric(name, labels, value);
            return;
        };
        let Some(reached) = label(labels, "zone").and_then(reached) else { return };
        let counted = self.reached.entry(reached).or_default();
        let number = value.parse().unwrap_or(0);
        match about {
            "requests_total" => {
                let status = label(labels, "status").unwrap_or_default();
                counted.requests.push((status.to_owned(), number));
            }
            "received_bytes_total" => counted.received = number,
            "sent_bytes_total" => counted.sent = number,
            "latency_seconds_bucket" => {
                let Some(end) = label(labels, "le") else { return };
                let next = BOUNDS.get(counted.buckets.len());
                let is_next = |end: f64| next.is_some_and(|bound| end >= *bound);
                if end != "+Inf" && end.parse().is_ok_and(is_next) {
                    counted.buckets.push((end.to_owned(), value.to_owned()));
                }
            }
            "latency_seconds_sum" => value.clone_into(&mut counted.sum),
            "latency_seconds_count" => value.clone_into(&mut counted.count),
            _ => {}
        }
    }

    fn read_server_metric(&mut self, name: &str, labels: &str, value: &str) {
        match name {
            "weir_process_resident_bytes" => {
                self.memory = self.memory.saturating_add(value.parse().unwrap_or(0));
            }
            "weir_certificate_not_after_seconds" => {
                let host = label(labels, "name").unwrap_or_default().to_owned();
                // Of several certificates with one name, the first to expire counts.
                let number = |text: &str| text.parse::<f64>().unwrap_or(f64::MAX);
                let known = self.certificates.entry(host).or_insert_with(|| value.to_owned());
                if number(value) < number(known) {
                    value.clone_into(known);
                }
            }
            _ => {
                let at = SERVER_METRICS.iter().position(|(own, ..)| *own == name);
                self.server_metrics.extend(at.map(|at| (at, value.to_owned())));
            }
        }
    }

    /// Writes the metrics under ingress-nginx's names.
    pub(super) fn write(&self, page: &mut Page<'_>) {
        // Ingresses without requests are left out. Thousands of them would be most of the page.
        let is_reached = |counted: &Counted| counted.requests.iter().any(|(_, number)| *number > 0);
        let every = || {
            let reached = self.reached.iter().filter(|(_, counted)| is_reached(counted));
            reached.map(|(reached, counted)| (labels(reached), counted))
        };
        page.head("requests", "counter", "Requests of clients, by class of their statuses");
        for (of, counted) in every() {
            for (status, number) in &counted.requests {
                page.line("requests", &format!("{of},status=\"{status}\""), number);
            }
        }
        for name in ["request_duration_seconds", "response_duration_seconds"] {
            page.head(name, "histogram", "How long requests took");
            for (of, counted) in every() {
                for (end, number) in &counted.buckets {
                    page.line(&format!("{name}_bucket"), &format!("{of},le=\"{end}\""), number);
                }
                page.line(&format!("{name}_bucket"), &format!("{of},le=\"+Inf\""), &counted.count);
                page.line(&format!("{name}_sum"), &of, &counted.sum);
                page.line(&format!("{name}_count"), &of, &counted.count);
            }
        }
        let name = "ingress_upstream_latency_seconds";
        page.head(name, "summary", "How long requests took");
        for (of, counted) in every() {
            page.line(&format!("{name}_sum"), &of, &counted.sum);
            page.line(&format!("{name}_count"), &of, &counted.count);
        }
        for (name, help, answers) in [
            ("request_size", "Bytes of requests", false),
            ("response_size", "Bytes of answers", true),
            ("bytes_sent", "Bytes of answers", true),
        ] {
            page.head(name, "histogram", help);
            for (of, counted) in every() {
                let all: u64 = counted.requests.iter().map(|(_, number)| number).sum();
                page.line(&format!("{name}_bucket"), &format!("{of},le=\"+Inf\""), all);
                page.line(
                    &format!("{name}_sum"),
                    &of,
                    if answers { counted.sent } else { counted.received },
                );
                page.line(&format!("{name}_count"), &of, all);
            }
        }
        let mut last = "";
        for (at, value) in &self.server_metrics {
            let Some((_, name, labels, kind, help)) = SERVER_METRICS.get(*at) else { continue };
            if std::mem::replace(&mut last, name) != *name {
                page.head(name, kind, help);
            }
            page.line(name, labels, value);
        }
        let name = "nginx_process_resident_memory_bytes";
        page.head(name, "gauge", "Memory of the worker processes");
        page.line(name, "", self.memory);
        let name = "ssl_expire_time_seconds";
        page.head(name, "gauge", "The last second of a certificate, since 1970");
        for (host, end) in &self.certificates {
            page.line(name, &format!("host=\"{host}\""), end);
        }
    }
}

/// A page that is being written.
pub(super) struct Page<'p> {
    pub(super) text: String,
    /// The prefix of all names.
    pub(super) prefix: &'p str,
    /// The labels of all lines.
    pub(super) labels: &'p str,
}

// Writing to a String cannot fail.
impl Page<'_> {
    pub(super) fn head(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        let _ = write!(self.text, "# HELP {prefix}{name} {help}.\n# TYPE {prefix}{name} {kind}\n");
    }

    pub(super) fn line(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let (prefix, shared_labels) = (self.prefix, self.labels);
        let comma = if shared_labels.is_empty() || labels.is_empty() { "" } else { "," };
        let (open, close) =
            if shared_labels.is_empty() && labels.is_empty() { ("", "") } else { ("{", "}") };
        let _ = writeln!(
            self.text,
            "{prefix}{name}{open}{shared_labels}{comma}{labels}{close} {value}"
        );
    }
}

/// The labels of the controller, which ingress-nginx has in each line.
pub(super) fn controller(class: &str, namespace: &str, pod: &str) -> String {
    let pairs =
        [("controller_class", class), ("controller_namespace", namespace), ("controller_pod", pod)];
    let pair = |(name, value): (&str, &str)| {
        format!("{name}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
    };
    pairs.map(pair).join(",")
}

/// The name, labels and value of a line.
fn sample(line: &str) -> Option<(&str, &str, &str)> {
    let (head, value) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    match head.split_once('{') {
        Some((name, labels)) => Some((name, labels.strip_suffix('}')?, value)),
        None => Some((head, "", value)),
    }
}

/// The value of a label, still escaped.
fn label<'l>(labels: &'l str, name: &str) -> Option<&'l str> {
    let mut rest = labels;
    loop {
        let (found, value) = rest.split_once("=\"")?;
        // A quote within a value is escaped by a backslash.
        let ends = |(at, _): &(usize, &str)| {
            let before = value.get(..*at).unwrap_or_default();
            (before.len() - before.trim_end_matches('\\').len()) % 2 == 0
        };
        let (end, _) = value.match_indices('"').find(ends)?;
        if found == name {
            return value.get(..end);
        }
        rest = value.get(end + 1..)?.trim_start_matches(',');
    }
}

/// The Ingress that a `status_zone` counts, if it is one's: see [`crate::translate::counted`].
fn reached(zone: &str) -> Option<Reached> {
    let (ingress, canary) = match zone.strip_prefix("Ingress ")?.split_once(" canary ") {
        Some((ingress, servers)) => (ingress, Some(servers)),
        None => (zone.strip_prefix("Ingress ")?, None),
    };
    let (namespace, name) = ingress.split_once('/')?;
    // ingress-nginx names servers NAMESPACE-SERVICE-PORT.
    let canary = canary.map(|servers| format!("{namespace}-{}", servers.replace(':', "-")));
    Some((namespace.to_owned(), name.to_owned(), canary.unwrap_or_default()))
}

fn labels((namespace, ingress, canary): &Reached) -> String {
    format!("namespace=\"{namespace}\",ingress=\"{ingress}\",canary=\"{canary}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# TYPE weir_zone_requests_total counter
weir_zone_requests_total{zone=\"Ingress shop/web\",status=\"2xx\"} 12
weir_zone_requests_total{zone=\"Ingress shop/web\",status=\"5xx\"} 1
weir_zone_requests_total{zone=\"Ingress shop/web canary new:80\",status=\"2xx\"} 3
weir_zone_requests_total{zone=\"Ingress shop/quiet\",status=\"2xx\"} 0
weir_zone_requests_total{zone=\"HTTPRoute shop/other\",status=\"2xx\"} 7
weir_zone_sent_bytes_total{zone=\"Ingress shop/web\"} 900
weir_zone_latency_seconds_bucket{zone=\"Ingress shop/web\",le=\"0.004096\"} 2
weir_zone_latency_seconds_bucket{zone=\"Ingress shop/web\",le=\"0.00512\"} 3
weir_zone_latency_seconds_bucket{zone=\"Ingress shop/web\",le=\"0.006144\"} 4
weir_zone_latency_seconds_bucket{zone=\"Ingress shop/web\",le=\"0.01024\"} 5
weir_zone_latency_seconds_bucket{zone=\"Ingress shop/web\",le=\"+Inf\"} 13
weir_zone_latency_seconds_sum{zone=\"Ingress shop/web\"} 1.5
weir_zone_latency_seconds_count{zone=\"Ingress shop/web\"} 13
weir_active_connections 4
weir_waiting_connections 3
weir_process_resident_bytes{worker=\"0\"} 100
weir_process_resident_bytes{worker=\"1\"} 50
weir_certificate_not_after_seconds{file=\"/a,name=\\\"x\",name=\"shop.test\"} 1900000000
";

    #[test]
    fn requests_of_ingresses_have_the_names_of_ingress_nginx() {
        let mut metrics = NginxMetrics::default();
        PAGE.lines().for_each(|line| metrics.read_line(line));
        let labels = controller("weir.internal/ingress", "weir-system", "pod-1");
        let mut page = Page { text: String::new(), prefix: OF_NGINX, labels: &labels };
        metrics.write(&mut page);
        let page = page.text;
        let of = "controller_class=\"weir.internal/ingress\",controller_namespace=\"weir-system\",controller_pod=\"pod-1\"";
        let web = format!("{of},namespace=\"shop\",ingress=\"web\",canary=\"\"");
        let new = format!("{of},namespace=\"shop\",ingress=\"web\",canary=\"shop-new-80\"");
        for (line, value) in [
            (format!("requests{{{web},status=\"2xx\"}}"), "12"),
            (format!("requests{{{web},status=\"5xx\"}}"), "1"),
            (format!("requests{{{new},status=\"2xx\"}}"), "3"),
            (format!("request_duration_seconds_bucket{{{web},le=\"0.00512\"}}"), "3"),
            (format!("request_duration_seconds_bucket{{{web},le=\"0.01024\"}}"), "5"),
            (format!("request_duration_seconds_bucket{{{web},le=\"+Inf\"}}"), "13"),
            (format!("request_duration_seconds_count{{{web}}}"), "13"),
            (format!("response_duration_seconds_bucket{{{web},le=\"0.00512\"}}"), "3"),
            (format!("response_duration_seconds_sum{{{web}}}"), "1.5"),
            (format!("response_duration_seconds_count{{{web}}}"), "13"),
            (format!("response_size_sum{{{web}}}"), "900"),
            (format!("nginx_process_connections{{{of},state=\"active\"}}"), "4"),
            (format!("nginx_process_resident_memory_bytes{{{of}}}"), "150"),
            (format!("ssl_expire_time_seconds{{{of},host=\"shop.test\"}}"), "1900000000"),
        ] {
            let line = format!("nginx_ingress_controller_{line} {value}\n");
            assert!(page.contains(&line), "{line} in {page}");
        }
        assert_eq!(page.matches("_request_duration_seconds_bucket{").count(), 4, "{page}");
        assert!(!page.contains("other") && !page.contains("quiet"), "{page}");
        // Each name has one help and one type.
        let names: Vec<_> = page.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let once: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(names.len(), once.len(), "{page}");
    }
}
