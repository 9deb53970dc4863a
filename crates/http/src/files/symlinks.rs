//! The setting of `disable_symlinks`.

use weir_values::Template;

/// `disable_symlinks`
#[derive(Debug, Clone, Default)]
pub struct Symlinks {
    /// The links that are refused.
    pub refuse: Refuse,
    /// `from=`: links in this leading part of the path are allowed.
    pub from: Option<Template>,
}

/// The symbolic links that are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Refuse {
    /// None.
    #[default]
    Nothing,
    /// Links whose owner differs from that of the target.
    NotOwner,
    /// All.
    All,
}
