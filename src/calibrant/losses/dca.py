"""Difference between mean confidence and accuracy of a batch, overall and per class."""

from calibrant.losses.log_probs import allowed, batch_probs, confidence_and_correct, label_index
from calibrant.shapes import Labels, Logits, Scalar


def dca(logits: Logits, labels: Labels) -> Scalar:
    r"""Gap between the mean confidence of the batch and its accuracy.

    $$\mathrm{DCA} = \Big| \frac1n \sum_i r_i - \frac1n \sum_i c_i \Big|$$

    A batch statistic; correctness c has no gradient. It is ECE with a single bin: errors of
    opposite sign cancel, and zero does not mean calibrated.

    References:
        Liang et al., Improved Trainable Calibration Method for Neural Networks on Medical Imaging
            Classification, BMVC 2020, arXiv:2009.04057
    """
    confidence, correct = confidence_and_correct(logits, labels)
    return (confidence.mean() - correct.mean()).abs()


def mdca(logits: Logits, labels: Labels) -> Scalar:
    r"""Gap between the mean probability of each class and how often it occurs in the batch.

    $$\mathrm{MDCA} = \frac1k \sum_j \Big| \frac1n \sum_i p_{ij} - \frac1n \sum_i 1[y_i = j] \Big|$$

    A batch statistic, often added to focal loss. In small batches of many classes the frequencies
    are mostly noise, and minimising it flattens the predictions towards them. A masked class has
    probability 0; k counts the classes that are allowed in some example of the batch.

    References:
        Hebbalaguppe et al., A Stitch in Time Saves Nine: A Train-Time Regularizing Loss for
            Improved Neural Network Calibration, CVPR 2022, arXiv:2203.13834
    """
    mean = batch_probs(logits).mean(0)
    counts = label_index(labels, logits)[:, 0].bincount(minlength=len(mean)).to(mean)
    return (mean - counts / len(labels)).abs().sum() / allowed(logits).any(0).sum()
