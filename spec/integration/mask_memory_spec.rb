# frozen_string_literal: true

require "tmpdir"

# A photograph of twelve megapixels has 36 MB, and so has each of its masks: the numbers that a mask is made of may not
# be held for all pixels.
RSpec.describe "The memory of masks", if: File.readable?("/proc/self/status") do
  def write_bmp(path, width, height)
    header = [54 + (3 * width * height), 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0].pack("VVVVVVvvVVVVVV")
    File.binwrite(path, "BM".b + header + ("\x55".b * (3 * width * height)))
  end

  it "is that of the masks themselves" do
    Dir.mktmpdir do |folder|
      path = File.join(folder, "large.bmp")
      write_bmp(path, 4000, 3000)
      output, errors, status = run_ruby(<<~RUBY)
        model = Candle::ImageSegmenter.from_pretrained(#{TinyModels.path("sam2").inspect}, device: "cpu")
        found = model.segment(#{path.inspect}, points: [[3, 3]])
        abort "another size" unless found.all? { |one| [one[:mask].width, one[:mask].height] == [4000, 3000] }
        puts File.read("/proc/self/status")[/VmHWM:\\s+(\\d+)/, 1].to_i / 1024
      RUBY
      expect(status).to be_success, errors
      expect(output.to_i).to be < 500
    end
  end
end
