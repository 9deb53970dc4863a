//! `disable_symlinks`: whether symbolic links may stand in a file's path.

use weir_values::Template;

/// The setting.
#[derive(Debug, Clone, Default)]
pub struct Symlinks {
    /// What is refused.
    pub refuse: Refuse,
    /// `from=`: links in this first part of the path are not looked at.
    pub from: Option<Template>,
}

/// Which symbolic links end the way to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Refuse {
    /// None.
    #[default]
    Nothing,
    /// Those with another owner than the file that they lead to.
    NotOwner,
    /// All.
    All,
}
