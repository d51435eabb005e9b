//! How queries grow with their positions.

/// Queries grow with n, their position and `offset` divided by `period`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    pub growth: Growth,
    pub scale: f32,
    pub offset: f32,
    pub period: f32,
    /// Only in layers that do not rotate (Llama 4).
    pub unrotated_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// By 1 + scale · ln(1 + ⌊n⌋).
    Steps,
    /// By (1 + n) to the power of the scale (Beam).
    Power,
}

impl Temperature {
    /// By steps, in every layer.
    pub fn steps(scale: f32, offset: f32, period: f32) -> Self {
        Self {
            growth: Growth::Steps,
            scale,
            offset,
            period,
            unrotated_only: false,
        }
    }

    /// The same in layers that do not rotate.
    pub fn unrotated(self) -> Self {
        Self {
            unrotated_only: true,
            ..self
        }
    }

    pub fn factor(&self, position: usize) -> f32 {
        let n = (position as f32 + self.offset) / self.period;
        match self.growth {
            Growth::Steps => 1.0 + self.scale * (1.0 + n.floor()).ln(),
            Growth::Power => (self.scale * n.ln_1p()).exp(),
        }
    }
}
