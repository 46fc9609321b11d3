// SPDX-License-Identifier: Apache-2.0
//! Settings of token columns.

use std::str::FromStr;

use clap::{Args, ValueEnum};

/// A column of `--columns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ColumnName {
    /// The experts of a mixture-of-experts model that processed each token (routing replay, R3).
    RoutedExperts,
    /// The tokens that each token was sampled from, under `top_k`, `top_p` and `min_p`.
    SamplingMask,
    /// The ids and logprobs of the likeliest tokens at each sampled token.
    TopLogprobs,
}

/// `--moe-shape`: layers, experts per token, experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeShape(pub [u32; 3]);

impl FromStr for MoeShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u32>> =
            text.split('x').map(|number| number.parse().ok().filter(|number| *number > 0)).collect();
        match numbers.as_deref() {
            Some([_, per_token, experts]) if per_token > experts => {
                Err(format!("a token cannot have {per_token} of {experts} experts"))
            }
            Some([layers, per_token, experts]) => Ok(Self([*layers, *per_token, *experts])),
            _ => Err("it is LAYERSxPER_TOKENxEXPERTS, as in 48x8x128".to_owned()),
        }
    }
}

/// Settings of token columns.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Token columns")]
pub struct ColumnConfig {
    /// Columns to ask the engine for with every recorded generation: routed_experts (needs --enable-return-routed-experts), sampling_mask, top_logprobs
    #[arg(long, env = "TOKENTAP_COLUMNS", value_name = "NAMES", value_delimiter = ',')]
    pub columns: Vec<ColumnName>,
    /// Layers, experts per token and experts of the model, as in 48x8x128; without it they are read from the model's config.json
    #[arg(long, env = "TOKENTAP_MOE_SHAPE", value_name = "LxKxE")]
    pub moe_shape: Option<MoeShape>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moe_shape_has_three_numbers() {
        assert_eq!("48x8x128".parse(), Ok(MoeShape([48, 8, 128])));
        assert_eq!("48x8x4".parse::<MoeShape>().unwrap_err(), "a token cannot have 8 of 4 experts");
        for text in ["", "48x8", "48x8x128x1", "0x8x128", "48x9x8", "48x8x-1", "48 x8x128"] {
            assert!(text.parse::<MoeShape>().is_err(), "{text}");
        }
    }
}
