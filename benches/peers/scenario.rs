//! How many clients ask for how many keys, and from how many processes?

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Scenario {
    #[value(name = "1")]
    One,
    #[value(name = "8-own")]
    EightOwn,
    #[value(name = "8-one")]
    Eight,
    #[value(name = "32-one")]
    ThirtyTwo,
    #[value(name = "8-four")]
    EightOverFour,
    #[value(name = "32-four")]
    ThirtyTwoOverFour,
}

/// Whether clients meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Keys {
    /// All ask for the same key.
    One,
    /// Each asks for its own.
    Own,
}

// === impl Scenario ===

impl Scenario {
    pub(crate) const ALL: &[Self] = &[
        Self::One,
        Self::EightOwn,
        Self::Eight,
        Self::ThirtyTwo,
        Self::EightOverFour,
        Self::ThirtyTwoOverFour,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::One => "1 client",
            Self::EightOwn => "8 clients, own keys",
            Self::Eight => "8 on one key, one process",
            Self::ThirtyTwo => "32 on one key, one process",
            Self::EightOverFour => "8 on one key, four processes",
            Self::ThirtyTwoOverFour => "32 on one key, four processes",
        }
    }

    pub(crate) fn clients(self) -> usize {
        match self {
            Self::One => 1,
            Self::EightOwn | Self::Eight | Self::EightOverFour => 8,
            Self::ThirtyTwo | Self::ThirtyTwoOverFour => 32,
        }
    }

    pub(crate) fn processes(self) -> usize {
        match self {
            Self::One | Self::EightOwn | Self::Eight | Self::ThirtyTwo => 1,
            Self::EightOverFour | Self::ThirtyTwoOverFour => 4,
        }
    }

    pub(crate) fn keys(self) -> Keys {
        match self {
            Self::EightOwn => Keys::Own,
            Self::One
            | Self::Eight
            | Self::ThirtyTwo
            | Self::EightOverFour
            | Self::ThirtyTwoOverFour => Keys::One,
        }
    }
}

// === impl Keys ===

impl Keys {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Own => "own",
        }
    }
}
