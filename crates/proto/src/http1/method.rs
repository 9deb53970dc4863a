//! Request methods and protocol versions.

macro_rules! methods {
    ($($id:ident $name:literal),* $(,)?) => {
        /// The methods that nginx knows by name; `limit_except` and friends test them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum Method {
            $(#[doc = concat!("`", stringify!($id), "` in capitals.")] $id,)*
            /// Any other name of capital letters, `_` and `-`.
            #[default]
            Other,
        }

        impl Method {
            /// Recognises a method by its exact, upper-case name.
            #[inline]
            pub fn from_name(name: &[u8]) -> Method {
                match name {
                    $($name => Method::$id,)*
                    _ => Method::Other,
                }
            }

            /// The name. `None` for [`Method::Other`], whose name only the request has.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Method::$id => std::str::from_utf8($name).ok(),)*
                    Method::Other => None,
                }
            }
        }
    };
}

methods! {
    Get b"GET",
    Head b"HEAD",
    Post b"POST",
    Put b"PUT",
    Delete b"DELETE",
    Mkcol b"MKCOL",
    Copy b"COPY",
    Move b"MOVE",
    Options b"OPTIONS",
    Propfind b"PROPFIND",
    Proppatch b"PROPPATCH",
    Lock b"LOCK",
    Unlock b"UNLOCK",
    Patch b"PATCH",
    Trace b"TRACE",
    Connect b"CONNECT",
}

/// The protocol version as far as behaviour depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// A request line without a version, or a response without a status line.
    #[default]
    Http09,
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1, and any later minor version, which nginx treats alike.
    Http11,
    /// HTTP/2.
    Http20,
    /// HTTP/3.
    Http30,
}

impl Version {
    pub(super) fn of_minor(minor: u16) -> Version {
        if minor == 0 { Version::Http10 } else { Version::Http11 }
    }
}
