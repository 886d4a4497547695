//! A median with its range.

/// Of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Half are smaller.
    pub median: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Spread {
    /// None of none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let (upper, lower) = (values.get(middle)?, values.get(values.len().saturating_sub(1) / 2)?);
        Some(Spread { median: f64::midpoint(*upper, *lower), least: *values.first()?, most: *values.last()? })
    }

    /// As text, by way of each value's.
    pub fn text(&self, show: impl Fn(f64) -> String) -> String {
        if self.least.to_bits() == self.most.to_bits() {
            return show(self.median);
        }
        format!("{} ({} to {})", show(self.median), show(self.least), show(self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranges() {
        let spread = |values: &[f64]| Spread::of(values.to_vec()).map(|s| (s.median, s.least, s.most));
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0, f64::NAN]), Some((2.5, 1.0, 4.0)));
        assert_eq!(spread(&[7.0]), Some((7.0, 7.0, 7.0)));
        assert_eq!(spread(&[]), None);
    }
}
