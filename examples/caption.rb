# frozen_string_literal: true

# Describe pictures and ask about them. Give the id or directory of a LLaVA model, such as "llava-hf/llava-1.5-7b-hf",
# and pictures; without them a small random model shows the calls.
require "candle"

root = File.expand_path("../spec/fixtures", __dir__)
source, *paths = ARGV
vlm = Candle::VLM.from_pretrained(source || File.join(root, "tiny/llava"))
paths = %w[photo.png flower.png].map { |name| File.join(root, "images", name) } if paths.empty?

paths.each do |path|
  print "#{File.basename(path)}: "
  vlm.describe(path, max_length: 16) { |piece| print piece }
  puts
end

# A second question about a picture does not look at it again.
looks = vlm.looks
puts vlm.ask(paths.first, "What is in the middle?", max_length: 8).inspect
raise "a picture is looked at once" unless vlm.looks == looks
