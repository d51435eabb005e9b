# frozen_string_literal: true

# Find pictures by what they show. Give the id or directory of a CLIP or SigLIP model, such as
# "openai/clip-vit-base-patch32", and a folder of pictures; without them a small random model shows the calls.
require "candle"

root = File.expand_path("../spec/fixtures", __dir__)
source = ARGV.fetch(0, File.join(root, "tiny/clip"))
folder = ARGV.fetch(1, File.join(root, "images"))

clip = Candle::CLIP.from_pretrained(source)
paths = Dir[File.join(folder, "*.{png,jpg,jpeg,webp,gif,bmp}")]

# Vectors of any number of pictures. A database would keep them, here a tensor does.
vectors = clip.embed_image(paths, as: :tensor)

["a temple in the evening", "a flower"].each do |question|
  puts question
  clip.search(question, vectors, top_k: 3).each do |hit|
    puts format("  %<score>.3f  %<name>s", score: hit[:score], name: File.basename(paths[hit[:index]]))
  end
end

# A picture finds those that look like it, itself first.
found = clip.search(Candle::Image.open(paths.first), vectors, top_k: 1).first
raise "a picture is most like itself" unless found[:score] > 0.999

labels = clip.classify_image(paths.first, %w[temple flower portrait])
puts "#{File.basename(paths.first)}: #{labels.map { |entry| format("%<label>s %<score>.2f", entry) }.join(", ")}"
