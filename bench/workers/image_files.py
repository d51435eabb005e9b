"""Models of images with seeded random weights, for bench/images.rb: python image_files.py FOLDER

Writes for each model FOLDER/NAME/config.json, preprocessor_config.json and model.safetensors, as transformers does, and
FOLDER/NAME/model.onnx with the numbers of one image as its input.
"""

import json
import os
import sys

import torch
import transformers as t

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def square(kind, edge, **settings):
    return {"image_processor_type": kind, "size": {"height": edge, "width": edge}, **IMAGENET, **settings}


def resnet50():
    return t.ResNetConfig(embedding_size=64, hidden_sizes=[256, 512, 1024, 2048], depths=[3, 4, 6, 3],
                          out_features=["stage4"])


# The name, the class, its configuration, the image processor, and (height, width) of what the model reads.
MODELS = [
    ("resnet-50", t.ResNetForImageClassification, resnet50, square("ViTImageProcessor", 224), (224, 224)),
    ("convnext-tiny", t.ConvNextForImageClassification, t.ConvNextConfig, square("ViTImageProcessor", 224), (224, 224)),
    ("vit-base-16", t.ViTForImageClassification, t.ViTConfig, square("ViTImageProcessor", 224), (224, 224)),
    ("swin-tiny", t.SwinForImageClassification, t.SwinConfig, square("ViTImageProcessor", 224), (224, 224)),
    ("mobilenet-v2", t.MobileNetV2ForImageClassification, lambda: t.MobileNetV2Config(tf_padding=False),
     square("ViTImageProcessor", 224), (224, 224)),
    ("detr-r50", t.DetrForObjectDetection, lambda: t.DetrConfig(backbone_config=resnet50(), num_labels=91),
     square("DetrImageProcessor", 640, do_pad=False), (640, 640)),
    ("rt-detr-r18", t.RTDetrForObjectDetection,
     lambda: t.RTDetrConfig(
         backbone_config=t.RTDetrResNetConfig(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2],
                                              layer_type="basic", out_indices=[2, 3, 4]),
         encoder_in_channels=[128, 256, 512], decoder_layers=3, hidden_expansion=0.5, num_denoising=0),
     square("RTDetrImageProcessor", 640, do_normalize=False), (640, 640)),
    ("yolos-small", t.YolosForObjectDetection,
     lambda: t.YolosConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536, image_size=[512, 512],
                           use_mid_position_embeddings=False),
     square("YolosImageProcessor", 512, do_pad=False), (512, 512)),
    ("segformer-b0", t.SegformerForSemanticSegmentation, lambda: t.SegformerConfig(num_labels=150),
     square("SegformerImageProcessor", 512), (512, 512)),
]


# Places that depend on other places enlarge differences of rounding.
MILD = ("sampling_offsets", "bbox", "score_head", "class_embed")


class Outputs(torch.nn.Module):
    """Logits, and boxes where there are some."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values):
        found = self.model(pixel_values=pixel_values)
        return (found.logits, found.pred_boxes) if "pred_boxes" in found else found.logits


def livelier(model):
    """Random weights of usual sizes, so that no layer's part of the result vanishes."""
    for name, tensor in model.named_parameters():
        if tensor.dim() > 1 and "embed" not in name.split(".")[-1]:
            mild = 0.1 if any(part in name for part in MILD) else 1.0
            torch.nn.init.normal_(tensor, std=mild * (1.0 / tensor[0].numel()) ** 0.5)
        elif name.endswith("bias"):
            torch.nn.init.normal_(tensor, std=0.1)
    for name, tensor in model.named_buffers():
        if name.endswith("running_var"):
            tensor.uniform_(0.8, 1.2)


def write(root, name, kind, config, images, size):
    folder = os.path.join(root, name)
    if os.path.exists(os.path.join(folder, "model.onnx")):
        return
    torch.manual_seed(1)
    model = kind._from_config(config(), attn_implementation="eager")
    livelier(model)
    model.eval().save_pretrained(folder)
    with open(os.path.join(folder, "preprocessor_config.json"), "w", encoding="utf-8") as file:
        json.dump(images, file)
    path = os.path.join(folder, "model.onnx")
    # A graph whose weights are constants, which onnxruntime folds.
    torch.onnx.export(Outputs(model), (torch.randn(1, 3, *size),), path + ".part", input_names=["pixel_values"],
                      opset_version=17, dynamo=False)
    os.rename(path + ".part", path)
    print(name, sum(tensor.numel() for tensor in model.parameters()), flush=True)


if __name__ == "__main__":
    for entry in MODELS:
        write(sys.argv[1], *entry)
