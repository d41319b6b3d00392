"""Built-in texts to compare models on: English and Chinese, short and long, with numbers and names."""

from __future__ import annotations

TEXTS = (
    "Yes.",
    "Good morning!",
    "What time does the library close?",
    "The kettle is boiling.",
    "She sold her bicycle to a neighbour for forty pounds.",
    "Prices rose by 3.7% in March, the largest rise since 2011.",
    "Nobody in the village could remember a winter as long as this one.",
    "Please restart the server after you have changed the settings, or it will go on using the old ones.",
    "The film is slow at first, but the last half hour is among the best I have seen this year.",
    "Dr. Okafor presented her results at the University of Nairobi on Tuesday.",
    "If the valve is left open, pressure falls, the pump runs dry, and within a few minutes its bearings are ruined.",
    "He bought apples, bread and cheese, walked down to the river, and ate everything before the rain began.",
    "Error 404: the page that you asked for does not exist.",
    "A court in Madrid ruled that the contract had never been valid, because one of the signatures was not real.",
    "Water boils at a lower temperature in the mountains, which is why rice takes longer to cook there.",
    "The battery lasts two days with light use; with maps and video it is empty by the evening, and charging it takes "
    "almost three hours even with the strongest charger that the company sells.",
    "I don't like it, I don't hate it, I simply wouldn't pay for it again.",
    "Trains between the two cities leave every twenty minutes from six in the morning until midnight, except on "
    "Sundays and holidays, when there is one an hour; tickets that were bought for a certain train are valid on the "
    "next one if the first was late by more than a quarter of an hour.",
    "是的。",
    "早上好！",
    "图书馆几点关门？",
    "水开了。",
    "她把自行车以四百元卖给了邻居。",
    "三月份物价上涨了3.7%，是2011年以来涨幅最大的一次。",
    "村里没有人记得哪一年的冬天有这么长。",
    "修改设置以后请重新启动服务器，否则它会继续使用旧的设置。",
    "这部电影开头有些慢，但最后半个小时是我今年看过的最精彩的。",
    "王教授星期二在北京大学介绍了她的研究成果。",
    "如果阀门一直开着，压力就会下降，水泵空转，几分钟之内轴承就会损坏。",
    "他买了苹果、面包和奶酪，走到河边，在下雨之前把东西都吃完了。",
    "错误404：您访问的页面不存在。",
    "法院认定这份合同从来没有生效，因为其中一个签名是伪造的。",
    "山上的水在较低的温度就会沸腾，所以在那里煮饭需要更长的时间。",
    "轻度使用时电池可以用两天；如果看地图和视频，到晚上就没电了，即使用公司最快的充电器，充满也要将近三个小时。",
    "房间很干净，服务员也很热情，就是离地铁站有点远。",
    "两座城市之间的火车从早上六点到午夜每二十分钟一班，星期天和节假日每小时一班；如果列车晚点超过一刻钟，"
    "车票可以在下一班车上使用，不需要另外付钱，也不需要到窗口改签。",
)
