// SPDX-License-Identifier: Apache-2.0
//! The colours of entropies: the steps and colours of the page.

use super::terminal::{Palette, Rgb};

/// The number of colour steps.
const STEPS: usize = 24;

/// The nats of the last step; higher entropies have the same colour.
const MOST: f32 = 4.0;

/// The height of a column of a spark line, by a third of the steps.
const SPARKS: [char; 8] =
    ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];

/// Shown instead of an absent number.
pub(super) const ABSENT: &str = "\u{2013}";

/// A colour in OKLCH: lightness, chroma, hue in degrees.
type Oklch = [f64; 3];

/// The colours of a background and of text on it.
struct Theme {
    low: Oklch,
    high: Oklch,
    ink: Oklch,
}

const LIGHT: Theme = Theme { low: [0.975, 0.012, 95.0], high: [0.715, 0.16, 48.0], ink: [0.24, 0.015, 260.0] };
const DARK: Theme = Theme { low: [0.255, 0.015, 80.0], high: [0.5, 0.13, 42.0], ink: [0.93, 0.006, 260.0] };

/// The step of an entropy in nats; `None` for NaN and negative numbers. The square root spreads the many small entropies.
pub(super) fn step(nats: f32) -> Option<usize> {
    // the largest step is 23, which is exact
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 23")]
    let step = |nats: f32| ((f64::from(nats.min(MOST)) / f64::from(MOST)).sqrt() * (STEPS - 1) as f64 + 0.5) as usize;
    (nats >= 0.0).then(|| step(nats))
}

/// The column of an entropy in a spark line.
pub(super) fn spark(nats: f32) -> char {
    step(nats).map_or('\u{b7}', |step| SPARKS[step / 3])
}

/// The mean of the measured entropies; `None` without a measured entropy.
pub(super) fn mean(entropy: impl IntoIterator<Item = f32>) -> Option<f32> {
    let (mut sum, mut count) = (0.0, 0_u32);
    for value in entropy.into_iter().filter(|value| !value.is_nan()) {
        sum += f64::from(value);
        count += 1;
    }
    #[expect(clippy::cast_possible_truncation, reason = "a mean of float32 numbers is in their range")]
    (count > 0).then(|| (sum / f64::from(count)) as f32)
}

/// Formats an entropy; [`ABSENT`] if it is missing.
pub(super) fn shown(nats: Option<f32>) -> String {
    nats.filter(|nats| nats.is_finite()).map_or_else(|| ABSENT.to_owned(), |nats| format!("{nats:.3}"))
}

/// The colours of all steps, as the terminal writes them.
#[derive(Debug)]
pub(super) struct Scale {
    pub(super) palette: Palette,
    /// The SGR parameters of each step.
    codes: Vec<String>,
}

impl Scale {
    /// The scale for a palette, on a light or on a dark background.
    pub(super) fn new(palette: Palette, is_light: bool) -> Self {
        let theme = if is_light { &LIGHT } else { &DARK };
        let ink = srgb(theme.ink);
        Self { palette, codes: ramp(theme).map(|colour| palette.on(colour, ink)).collect() }
    }

    /// The scale for standard output. The background is dark, unless `COLORFGBG` says that it is light.
    pub(super) fn of_stdout() -> Self {
        let variable = std::env::var("COLORFGBG").unwrap_or_default();
        let is_light = variable.rsplit(';').next().is_some_and(|background| matches!(background, "7" | "15"));
        Self::new(Palette::of_stdout(), is_light)
    }

    /// The SGR parameters of an entropy: a colour, or an underline if it is missing. `None` without colours.
    pub(super) fn code(&self, nats: f32) -> Option<&str> {
        self.palette.has_colours().then(|| step(nats).map_or("4", |step| &self.codes[step]))
    }

    /// `text` on the colour of an entropy.
    pub(super) fn paint(&self, nats: f32, text: &str) -> String {
        match self.code(nats) {
            Some(code) => format!("\x1b[{code}m{text}\x1b[0m"),
            None => text.to_owned(),
        }
    }

    /// A line that explains the colours; `None` without colours.
    pub(super) fn legend(&self) -> Option<String> {
        let steps: String = self.codes.iter().map(|code| format!("\x1b[{code}m ")).collect();
        self.palette.has_colours().then(|| format!("entropy 0 {steps}\x1b[0m {MOST}+ nats"))
    }
}

/// The colours of the steps: an even mix of both ends in OKLCH.
fn ramp(theme: &Theme) -> impl Iterator<Item = Rgb> {
    (0..STEPS).map(|step| {
        let share = step as f64 / (STEPS - 1) as f64;
        srgb(std::array::from_fn(|part| theme.low[part] + (theme.high[part] - theme.low[part]) * share))
    })
}

/// OKLCH as sRGB (<https://www.w3.org/TR/css-color-4/#color-conversion-code>), clipped to its gamut.
fn srgb([lightness, chroma, hue]: Oklch) -> Rgb {
    let (a, b) = (chroma * hue.to_radians().cos(), chroma * hue.to_radians().sin());
    let long = (lightness + 0.396_337_777_4 * a + 0.215_803_757_3 * b).powi(3);
    let middle = (lightness - 0.105_561_345_8 * a - 0.063_854_172_8 * b).powi(3);
    let short = (lightness - 0.089_484_177_5 * a - 1.291_485_548 * b).powi(3);
    let linear = [
        4.076_741_662_1 * long - 3.307_711_591_3 * middle + 0.230_969_929_2 * short,
        -1.268_438_004_6 * long + 2.609_757_401_1 * middle - 0.341_319_396_5 * short,
        -0.004_196_086_3 * long - 0.703_418_614_7 * middle + 1.707_614_701 * short,
    ];
    linear.map(|part| {
        let part = part.clamp(0.0, 1.0);
        let encoded = if part <= 0.003_130_8 { 12.92 * part } else { 1.055 * part.powf(1.0 / 2.4) - 0.055 };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 255")]
        let byte = (255.0 * encoded).round() as u8;
        byte
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JS: &str = include_str!("../serve/control/page/scale.js");
    const CSS: &str = include_str!("../serve/control/page/tokens.css");

    #[test]
    fn steps_are_those_of_the_page() {
        assert!(
            JS.contains(&format!("export const STEPS = {STEPS};"))
                && JS.contains(&format!("export const MOST = {MOST};"))
        );
        assert!(JS.contains("return Math.round(Math.sqrt(Math.min(nats, MOST) / MOST) * (STEPS - 1));"));
        assert!(JS.contains("if (!(nats >= 0)) return -1;"));
        assert_eq!([0.0, 0.001, 0.5, 1.0, 4.0, f32::INFINITY].map(step), [0, 0, 8, 12, 23, 23].map(Some));
        assert_eq!([f32::NAN, -0.1].map(step), [None, None]);
    }

    #[test]
    fn colours_are_those_of_the_page() {
        for (name, light, dark) in
            [("low", LIGHT.low, DARK.low), ("high", LIGHT.high, DARK.high), ("ink", LIGHT.ink, DARK.ink)]
        {
            let colour = |[lightness, chroma, hue]: Oklch| format!("oklch({lightness} {chroma} {hue})");
            let line = format!("--{name}: light-dark({}, {});", colour(light), colour(dark));
            assert!(CSS.contains(&line), "{line}");
        }
        assert!(CSS.contains("color-mix(in oklch, var(--low), var(--high) calc(var(--e) * 100% / 23))"));
        // https://www.w3.org/TR/css-color-4/#ok-lab
        assert_eq!([[1.0, 0.0, 0.0], [0.0; 3], [0.62796, 0.25768, 29.234]].map(srgb), [[255; 3], [0; 3], [255, 0, 0]]);
    }

    #[test]
    fn absent_entropies_are_not_zero() {
        assert_eq!((mean([]), mean([f32::NAN]), mean([f32::NAN, 1.0, 2.0])), (None, None, Some(1.5)));
        assert_eq!(
            (shown(None), shown(Some(f32::NAN)), shown(Some(0.0))),
            ("\u{2013}".into(), "\u{2013}".into(), "0.000".into())
        );
        assert_eq!([f32::NAN, 0.0, 4.0].map(spark), ['\u{b7}', '\u{2581}', '\u{2588}']);
    }
}
