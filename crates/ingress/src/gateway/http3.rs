//! HTTP/3 for listeners that ask for it.

use super::listeners::{Listener, Protocol};
use super::ports::Port;
use crate::report::Severity;
use crate::settings::Settings;
use crate::translate::Work;

/// The TLS option of a listener that asks for HTTP/3, if its value is `true`.
const OPTION: &str = "weir.internal/http3";

/// Decides which listeners have HTTP/3. Findings report those that ask for it in vain.
pub(super) fn choose(work: &mut Work<'_>, listeners: &mut [Listener<'_>], ports: &[Port]) {
    for port in ports.iter().filter(|port| !port.udp) {
        let mixed = port.speaks(listeners, &[Protocol::Passthrough, Protocol::Tls]);
        let taken = ports.iter().any(|other| other.udp && other.number == port.number);
        let why = match () {
            () if mixed => Some("listeners of TLS share its port"),
            () if taken => Some("a listener of UDP has its port"),
            () if !has_tls_1_3(work.settings) => Some("it needs TLSv1.3 in ssl-protocols"),
            () => None,
        };
        for number in &port.listeners {
            let Some(listener) = listeners.get_mut(*number).filter(|one| asks(one)) else {
                continue;
            };
            listener.http3 = why.is_none();
            if let Some(why) = why {
                let text = format!("{OPTION}: {why}; there is no HTTP/3");
                let about = listener.spec.name.as_str();
                work.say(&listener.owner, Severity::Warning, "NoHTTP3", about, &text);
            }
        }
    }
}

fn asks(listener: &Listener<'_>) -> bool {
    let option = listener.spec.tls.as_ref().and_then(|tls| tls.options.get(OPTION));
    listener.protocol == Some(Protocol::Https) && option.is_some_and(|value| value == "true")
}

fn has_tls_1_3(settings: &Settings) -> bool {
    let versions = settings.defaults.get("ssl-protocols");
    versions.is_none_or(|versions| versions.split([' ', ',']).any(|version| version == "TLSv1.3"))
}

/// The header of answers over TCP that offers HTTP/3.
pub(super) fn offer(listener: &Listener<'_>) -> String {
    format!("Alt-Svc: h3=\":{}\"; ma=86400", listener.port)
}
