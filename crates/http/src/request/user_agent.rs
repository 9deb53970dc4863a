//! What a few habits of browsers are recognised by. nginx: ngx_http_process_user_agent.

use memchr::memmem;

/// What a `User-Agent` claims to be, as far as settings ask for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Browser {
    /// MSIE of any version.
    pub msie: bool,
    /// MSIE 4, 5, or 6 before the second service pack of Windows XP.
    pub msie6: bool,
    /// Chrome and its kin.
    pub chrome: bool,
    /// Safari on macOS.
    pub safari: bool,
}

impl Browser {
    /// Reads the header's value.
    pub fn of(agent: &[u8]) -> Browser {
        let has = |text: &str| memmem::find(agent, text.as_bytes()).is_some();
        let opera = has("Opera");
        let mut browser = Browser::default();
        if let Some(at) = memmem::find(agent, b"MSIE ")
            && let Some([version, dot, rest @ ..]) = agent.get(at + 5..)
        {
            browser.msie = !opera;
            browser.msie6 = !opera
                && *dot == b'.'
                && match version {
                    b'4' | b'5' => true,
                    b'6' => memmem::find(rest, b"SV1").is_none(),
                    _ => false,
                };
        }
        if browser.msie || opera || has("Gecko/") {
            return browser;
        }
        browser.chrome = has("Chrome/");
        browser.safari = !browser.chrome && has("Safari/") && has("Mac OS X");
        browser
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_are_told_apart() {
        let of = |text: &str| Browser::of(text.as_bytes());
        let msie6 = of("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)");
        assert!(msie6.msie && msie6.msie6);
        assert!(!of("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; SV1)").msie6);
        assert!(of("Mozilla/5.0 (compatible; MSIE 9.0)").msie);
        assert!(!of("Mozilla/4.0 (compatible; MSIE 6.0) Opera 9.2").msie);
        assert!(of("Mozilla/5.0 (X11) AppleWebKit/1 (KHTML, like Gecko) Chrome/1 Safari/1").chrome);
        assert!(of("Mozilla/5.0 (Macintosh; Intel Mac OS X) Version/1 Safari/1").safari);
        assert_eq!(of("curl/8"), Browser::default());
        assert_eq!(of("MSIE "), Browser::default());
    }
}
