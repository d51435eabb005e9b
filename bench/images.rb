# frozen_string_literal: true

# Classifiers, detectors and a segmenter beside onnxruntime: milliseconds from the pixels of an image in memory to what
# is found in it, in f32. The models have the shapes of published ones and seeded random weights. Results are compared
# before anything is timed; then both take turns, and the middle of the rounds counts.
#
#   ruby -Ilib bench/images.rb [rounds] [threads] [names…]
#
# PYTHON= is an interpreter with the packages of bench/requirements.txt and torchvision.
require "candle"
require "fileutils"
require "json"
require "open3"
require_relative "harness/machine"
require_relative "harness/peers"

ROUNDS = Integer(ARGV[0] || 15)
THREADS = Integer(ARGV[1] || 2)
FOLDER = File.join(Tasks::Build.cache_directory, "bench", "images")
PYTHON = ENV.fetch("PYTHON") { Bench::Peers.python }
CLASSES = { "resnet-50" => Candle::ImageClassifier, "convnext-tiny" => Candle::ImageClassifier,
            "vit-base-16" => Candle::ImageClassifier, "swin-tiny" => Candle::ImageClassifier,
            "mobilenet-v2" => Candle::ImageClassifier, "detr-r50" => Candle::ObjectDetector,
            "rt-detr-r18" => Candle::ObjectDetector, "yolos-small" => Candle::ObjectDetector,
            "segformer-b0" => Candle::ImageSegmenter }.freeze
NAMES = ARGV.size > 2 ? ARGV.drop(2) : CLASSES.keys
# Pixels of masks as they are.
PLAIN = { "do_resize" => false, "do_center_crop" => false, "do_normalize" => false, "do_rescale" => false }.freeze
SCORES = 1e-3
PIXELS = 0.5
SHARE = 0.002

def prepare
  FileUtils.mkdir_p(FOLDER)
  system(PYTHON, File.expand_path("workers/image_files.py", __dir__), FOLDER, err: File::NULL, exception: true)
end

def picture(edge)
  File.join(FOLDER, "picture-#{edge}.png")
end

# A picture of the edge that a model reads.
def draw(name)
  edge = JSON.parse(File.read(File.join(FOLDER, name, "preprocessor_config.json"))).dig("size", "width")
  step = edge / 16
  bytes = Array.new(edge * edge) do |at|
    y, x = at.divmod(edge)
    [x * 255 / edge, y * 255 / edge, x / step * (y / step) % 256]
  end
  header = ["BM", 54 + (bytes.size * 3), 0, 54, 40, edge, edge, 1, 24, 0, 0, 0, 0, 0, 0].pack("a2L<4l<2S<2L<6")
  Candle::Image.open(header + bytes.flatten.pack("C*")).save(picture(edge))
  Candle::Image.open(picture(edge))
end

# onnxruntime in a process of its own.
class Peer
  def initialize
    worker = File.expand_path("workers/image_worker.py", __dir__)
    @input, @output, = Open3.popen2(PYTHON, worker, FOLDER, THREADS.to_s, err: File::NULL)
    raise "onnxruntime did not start" unless @output.gets
  end

  def call(name, show: false)
    @input.puts("#{name} #{show ? "show" : "hide"}")
    JSON.parse(@output.gets || raise("onnxruntime ended"))
  end
end

def run(model, image)
  case model
  when Candle::ImageClassifier then model.classify(image)
  when Candle::ObjectDetector then model.detect(image, threshold: 0)
  else model.segment(image)
  end
end

def clock
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

# What differs from the peer's result, if anything.
def difference(model, found, wanted)
  case model
  when Candle::ImageClassifier
    scores = found.to_h { |one| [model.labels.index(one[:label]), one[:score]] }
    far(wanted["scores"].each_with_index.map { |score, label| score - scores.fetch(label) }, SCORES)
  when Candle::ObjectDetector then misplaced(found.first(wanted["scores"].size), wanted)
  else
    labels = wanted["labels"]
    off = found.sum { |part| differing(part[:mask], labels, model.labels.index(part[:label])) }
    far([off.fdiv(2 * labels.size)], SHARE)
  end
end

# Things whose scores are alike may change places.
def misplaced(things, wanted)
  off = far(things.zip(wanted["scores"]).map { |one, score| one[:score] - score }, SCORES)
  return off if off

  edges = things.map { |one| one[:box].values }
  far(edges.map { |box| wanted["boxes"].map { |other| box.zip(other).map { |a, b| (a - b).abs }.max }.min }, PIXELS)
end

def differing(mask, labels, label)
  white = mask.prepared(PLAIN).first.to_a.first.flatten
  white.each_with_index.count { |value, at| (value > 0.5) != (labels[at] == label) }
end

def far(differences, limit)
  most = differences.map(&:abs).max
  "off by #{most}" if most > limit
end

Candle.num_threads = THREADS
prepare
peer = Peer.new
facts = Bench::Machine.facts
puts format("%<processor>s, %<threads>d threads, level %<level>s, load %<load>s", threads: THREADS, **facts)
alike = true
NAMES.each do |name|
  model = CLASSES.fetch(name).from_pretrained(File.join(FOLDER, name), device: "cpu")
  image = draw(name)
  problem = difference(model, run(model, image), peer.call(name, show: true)["found"])
  alike &&= problem.nil?
  ours = []
  theirs = []
  (ROUNDS + 1).times do |round|
    began = clock
    run(model, image)
    ours << (clock - began) if round.positive?
    # A library's threads wait in loops for a while.
    sleep 0.05
    theirs << peer.call(name)["seconds"] if round.positive?
    sleep 0.05
  end
  ours, theirs = [ours, theirs].map { |all| all.sort[all.size / 2] * 1000 }
  puts format("%-14<name>s red-candle %8.2<ours>f ms   onnxruntime %8.2<theirs>f ms   %4.2<ratio>f x %<problem>s",
              name:, ours:, theirs:, ratio: theirs / ours, problem:)
  model.close
end
abort "Some results differ." unless alike
